#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::train::byte_tokenizer {

std::string marker_json() {
  return "{\n  \"type\": \"bytes\",\n  \"vocab_size\": 259,\n  \"bos_token_id\": 256,\n  \"eos_token_id\": 257,\n"
         "  \"pad_token_id\": 258\n}\n";
}

}  // namespace fsdp::train::byte_tokenizer
