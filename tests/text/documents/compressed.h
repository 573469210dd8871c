#pragma once

#include <zlib.h>
#include <zstd.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp::io {

// One gzip member.
inline std::string gzip(std::string_view text) {
  z_stream stream = {};
  if (::deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  std::string out(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  if (::deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::logic_error("deflate");
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

// One zstd frame with a checksum; window_log 0 leaves the choice to the level.
inline std::string zstd(std::string_view text, int window_log = 0) {
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  // Streamed, and its length not announced: a frame of known length would not need the window.
  std::string out(::ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_outBuffer output = {out.data(), out.size(), 0};
  ZSTD_inBuffer input = {text.data(), text.size(), 0};
  ::ZSTD_compressStream2(context, &output, &input, ZSTD_e_flush);
  if (::ZSTD_compressStream2(context, &output, &input, ZSTD_e_end) != 0) throw std::logic_error("zstd");
  ::ZSTD_freeCCtx(context);
  out.resize(output.pos);
  return out;
}

// A frame that decoders pass over.
inline std::string zstd_skippable(std::string_view content) {
  std::string out = "\x50\x2a\x4d\x18";
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>((content.size() >> shift) & 255);
  return out.append(content);
}

}  // namespace fsdp::io
