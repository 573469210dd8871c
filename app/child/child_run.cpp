#include "app/child/child_run.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "app/launch/exec_strings.h"
#include "fsdp/base/error.h"

namespace fsdp::app {
namespace fs = std::filesystem;

int run_again(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables,
              const fs::path& log) {
  std::vector<std::string> line{"fsdp"};
  line.insert(line.end(), words.begin(), words.end());
  std::vector<std::string> environment = child_environment(variables);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &files, nullptr, exec_pointers(line).data(),
                                exec_pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    throw Error(ErrorCode::kInternal,
                std::string("[fsdp] this program cannot be started again: ") + std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string last_line(const fs::path& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = line;
  return last;
}

ScratchFolder::ScratchFolder() {
  std::string name = (fs::temp_directory_path() / "fsdp-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error(ErrorCode::kFileSystem, "[fsdp] " + name + ": cannot be made: " + std::strerror(errno) +
                                            ". Set TMPDIR to a folder that can be written.");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace fsdp::app
