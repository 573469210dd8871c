#include "fsdp/comm/rendezvous/secret_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp::comm {
namespace {

constexpr const char* kHowToMake = "Make one with `openssl rand -hex 32`.";

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

JobSecret checked(const std::string& text, const std::string& source) {
  std::string secret = trimmed(text);
  FSDP_CHECK(secret.size() >= JobSecret::kLeastBytes && secret.size() <= JobSecret::kMostBytes, "[init] ", source,
             ": got a secret of ", secret.size(), " bytes, expected ", JobSecret::kLeastBytes, " to ",
             JobSecret::kMostBytes, ". ", kHowToMake);
  return JobSecret(std::move(secret));
}

void check_private(const std::string& source, int file) {
  struct stat status {};
  FSDP_CHECK(fstat(file, &status) == 0, "[init] ", source, ": ", std::strerror(errno), ".");
  FSDP_CHECK(S_ISREG(status.st_mode), "[init] ", source, ": not a regular file. Name a file that holds the secret.");
  FSDP_CHECK(status.st_uid == geteuid() || status.st_uid == 0, "[init] ", source, ": belongs to user ", status.st_uid,
             ", who could change it; expected this user or root. Copy it: install -m 600 FILE OWN_FILE.");
  FSDP_CHECK((status.st_mode & 077) == 0, "[init] ", source, ": other users may read or write it (mode ",
             (status.st_mode >> 6) & 7, (status.st_mode >> 3) & 7, status.st_mode & 7,
             "), expected 600 or 400. Use chmod 600, and another secret if the file was there for long.");
}

JobSecret read_secret_file(const char* path) {
  const std::string source = std::string(kSecretFileVariable) + " '" + path + "'";
  // O_NONBLOCK: a pipe would keep open() waiting before its kind is known.
  const FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  FSDP_CHECK(static_cast<bool>(file), "[init] ", source, ": ", std::strerror(errno),
             ". Every host of the job needs the file, at the same path or its own.");
  check_private(source, file.get());
  std::string text(JobSecret::kMostBytes + 2, '\0');  // one line feed more is no other secret
  size_t size = 0;
  for (ssize_t count = 1; count > 0 && size < text.size(); size += static_cast<size_t>(count)) {
    count = read(file.get(), text.data() + size, text.size() - size);
    FSDP_CHECK(count >= 0, "[init] ", source, ": ", std::strerror(errno), ".");
  }
  text.resize(size);
  return checked(text, source);
}

}  // namespace

JobSecret read_job_secret(const GetVariable& get) {
  const char* text = get(kSecretVariable);
  const char* path = get(kSecretFileVariable);
  const bool has_text = text != nullptr && *text != '\0';
  const bool has_path = path != nullptr && *path != '\0';
  FSDP_CHECK(!has_text || !has_path, "[init] ", kSecretVariable, " and ", kSecretFileVariable,
             " are both set. Unset one of them.");
  if (has_path) return read_secret_file(path);
  return has_text ? checked(text, kSecretVariable) : JobSecret();
}

JobSecret take_job_secret() {
  // Kept for the whole process: the environment has it only once.
  static const JobSecret secret = [] {
    JobSecret found = read_job_secret([](const char* name) -> const char* { return std::getenv(name); });
    unsetenv(kSecretVariable);
    return found;
  }();
  return secret;
}

}  // namespace fsdp::comm
