#include <zstd.h>
#include <zstd_errors.h>

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "text/documents/byte_stream.h"
#include "text/documents/file_window.h"

namespace fsdp::io {

namespace {

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ::ZSTD_freeDCtx(context); }
};

// Of at most four bytes. Formats before the final one are not for reading: libzstd does not limit their windows.
bool may_start_a_frame(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr auto kMagic = "\x28\xb5\x2f\xfd"sv, kSkippableMagic = "\x2a\x4d\x18"sv;  // the latter after 0x50 to 0x5f
  if (bytes == kMagic.substr(0, bytes.size())) return true;
  return (bytes[0] & 0xf0) == 0x50 && bytes.substr(1) == kSkippableMagic.substr(0, bytes.size() - 1);
}

// What went by of the frame that is being read.
struct Frame {
  static constexpr size_t kMagicBytes = 4, kMaxHeaderBytes = 18;

  bool accepts(std::string_view next) const {
    if (header.size() >= kMagicBytes) return true;
    return may_start_a_frame(header + std::string(next.substr(0, kMagicBytes - header.size())));
  }
  void add_input(std::string_view bytes) { header += bytes.substr(0, kMaxHeaderBytes - header.size()); }

  std::string header;  // its first bytes
  uint64_t content_bytes = 0;
};

class ZstdStream : public ByteStream {
 public:
  ZstdStream(InputFile file, int max_window_log)
      : window_(std::move(file)), context_(::ZSTD_createDCtx()), max_window_log_(max_window_log) {
    if (context_ == nullptr) throw std::bad_alloc();
    if (::ZSTD_isError(::ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, max_window_log)) != 0) {
      throw Error(ErrorKind::kUsage, "[read] zstd: got a window limit of 2^" + std::to_string(max_window_log) +
                                         " bytes, expected one that libzstd knows.");
    }
  }

  size_t read(char* out, size_t num_bytes) override {
    ZSTD_outBuffer output = {out, num_bytes, 0};
    while (output.pos == 0) {
      // An output that was filled to the brim may have more behind it; only without that is new input due.
      if (input_.pos == input_.size && !has_more_output_ && !refill()) return 0;
      decompress(output);
      has_more_output_ = output.pos == output.size && pending_ != 0;
    }
    return output.pos;
  }
  uint64_t bytes_consumed() const override { return window_.end() - (input_.size - input_.pos); }

 private:
  // Stops at the end of a frame.
  void decompress(ZSTD_outBuffer& output) {
    const std::string_view input(static_cast<const char*>(input_.src) + input_.pos, input_.size - input_.pos);
    const size_t input_begin = input_.pos, output_begin = output.pos;
    if (pending_ == 0) frame_ = {};
    if (!frame_.accepts(input)) throw broken(::ZSTD_getErrorString(ZSTD_error_prefix_unknown));
    pending_ = ::ZSTD_decompressStream(context_.get(), &output, &input_);
    if (::ZSTD_isError(pending_) != 0) throw refused(::ZSTD_getErrorCode(pending_));
    frame_.add_input(input.substr(0, input_.pos - input_begin));
    frame_.content_bytes += output.pos - output_begin;
    if (pending_ == 0) check_size();
  }

  // Where a frame ends with an empty block, libzstd compares only if the output could hold the whole frame.
  void check_size() const {
    const unsigned long long said = ::ZSTD_getFrameContentSize(frame_.header.data(), frame_.header.size());
    if (said == ZSTD_CONTENTSIZE_UNKNOWN || said == ZSTD_CONTENTSIZE_ERROR || said == frame_.content_bytes) return;
    throw broken("a frame of " + std::to_string(frame_.content_bytes) + " bytes that says it has " +
                 std::to_string(said));
  }

  bool refill() {
    const bool more = window_.refill();
    input_ = {window_.data(), window_.size(), 0};
    if (!more && pending_ != 0) {
      throw window_.error(
          "at byte " + std::to_string(bytes_consumed()) +
          " got the end of the file inside of a zstd frame, expected more. The file is cut off: fetch it "
          "again.");
    }
    return more;
  }

  Error refused(ZSTD_ErrorCode code) const {
    if (code != ZSTD_error_frameParameter_windowTooLarge) return broken(::ZSTD_getErrorString(code));
    const std::string log = std::to_string(max_window_log_);
    return window_.error(where() + " got a zstd frame with a larger window than 2^" + log +
                         " bytes, expected at most that. Compress it again with --long=" + log + " or less.");
  }
  Error broken(const std::string& what) const {
    return window_.error(where() + " got broken zstd data (" + what +
                         "), expected zstd. Nothing behind it can be read: fetch the file again.");
  }
  // libzstd says where the piece starts that it can not make sense of, not where the damage is.
  std::string where() const { return "after byte " + std::to_string(bytes_consumed()); }

  FileWindow window_;
  std::unique_ptr<ZSTD_DCtx, FreeContext> context_;
  int max_window_log_;
  ZSTD_inBuffer input_ = {nullptr, 0, 0};
  size_t pending_ = 0;  // 0: between two frames
  Frame frame_;
  bool has_more_output_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> make_zstd_stream(InputFile file, int max_window_log) {
  return std::make_unique<ZstdStream>(std::move(file), max_window_log);
}

}  // namespace fsdp::io
