#pragma once

#include <cstddef>
#include <cstdint>

// What libfsdp_parquet.so offers: Arrow's parquet reader behind a few C functions, so that the program itself needs
// neither Arrow nor its headers. Loaded on demand (text/documents/parquet_reader.cpp). No exception crosses.
extern "C" {

// A value, UTF-8 not checked. A null has num_bytes -1.
struct FsdpParquetText {
  const char* data;
  int64_t num_bytes;
};

struct FsdpParquetPlugin {
  uint32_t version;  // kFsdpParquetVersion of the header it was built with; the rest is known only if it is ours

  // Opens column `column` ("a.b": field b of struct a) of strings or bytes. Arrow's buffers may hold `max_memory` bytes
  // at a time. Null if it fails; then `error` holds why, ended by NUL.
  void* (*open)(const char* path, const char* column, int64_t max_memory, char* error, size_t error_bytes);
  int64_t (*num_rows)(const void* file);
  // The next rows, valid until the next call: how many, 0 at the end, -1 for an error. Holds a page at a time.
  int64_t (*next)(void* file, const FsdpParquetText** texts, char* error, size_t error_bytes);
  void (*close)(void* file);
};

// The only symbol that is looked up.
const FsdpParquetPlugin* fsdp_parquet_plugin();
}

inline constexpr uint32_t kFsdpParquetVersion = 1;
