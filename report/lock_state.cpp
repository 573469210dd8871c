#include "report/lock_state.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

namespace fsdp::report {

bool is_locked(const std::filesystem::path& folder) {
  struct stat lock = {};
  if (::stat((folder / ".lock").c_str(), &lock) != 0) return false;
  // "1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF". Layered file systems show another device than stat() does.
  const std::string inode = ":" + std::to_string(lock.st_ino) + " ";
  std::ifstream table("/proc/locks");
  for (std::string line; std::getline(table, line);) {
    if (line.find("FLOCK") != std::string::npos && line.find(inode) != std::string::npos) return true;
  }
  return false;
}

}  // namespace fsdp::report
