#include "io/base/error.h"

#include <cerrno>
#include <system_error>

namespace fsdp::io {

namespace {

constexpr size_t kMaxQuoted = 200;

std::string_view advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space or choose another disk.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Check the owner and the rights of the file and its folder.";
    case ENOENT:
    case ENOTDIR:
      return "Check the path.";
    case EMFILE:
    case ENFILE:
      return "Raise the limit of open files (ulimit -n).";
    default:
      return "Check the file system.";
  }
}

}  // namespace

std::string in_quotes(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (unsigned char c : text.substr(0, kMaxQuoted)) {
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    }
  }
  out += text.size() > kMaxQuoted ? "...'" : "'";
  return out;
}

Error system_error(std::string_view op, const std::filesystem::path& path, int error_number,
                   std::string_view expected) {
  std::string message = "[";
  message.append(op).append("] ").append(in_quotes(path.native()));
  message.append(": got \"").append(std::generic_category().message(error_number));
  message.append("\" (errno ").append(std::to_string(error_number)).append("), expected ");
  message.append(expected).append(". ").append(advice(error_number));
  return Error(ErrorKind::kFileSystem, message);
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace fsdp::io
