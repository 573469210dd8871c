// A message of a rank to the store of a job, or an answer. Accepted means: written again it is the same bytes; a
// request can be carried out, now or once its keys are there.
#include <string>

#include "fsdp/comm/store/key_table.h"
#include "fsdp/comm/store/requests.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"

namespace fsdp::fuzz {
namespace {

void check_request(std::string_view bytes) {
  const auto request = comm::decode_request(bytes);
  if (!request) return;
  FUZZ_REQUIRE(comm::encode(*request) == bytes);
  comm::KeyTable table;
  if (!table.answer(*request)) {
    const size_t missing = table.missing_key(*request, 0);
    FUZZ_REQUIRE(missing < request->keys.size());
    comm::StoreRequest all{comm::StoreOperation::kSet, {}, 0, request->keys, request->keys};
    table.answer(all);
  }
  const auto answer = table.answer(*request);
  FUZZ_REQUIRE(answer.has_value());
  FUZZ_REQUIRE(request->operation != comm::StoreOperation::kGet || answer->values == request->keys);
  FUZZ_REQUIRE(comm::decode_answer(comm::encode(*answer)).has_value());
}

void check_answer(std::string_view bytes) {
  const auto answer = comm::decode_answer(bytes);
  if (answer) FUZZ_REQUIRE(comm::encode(*answer) == bytes);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdp::fuzz::CostGate gate(size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::check_request(bytes);
  fsdp::fuzz::check_answer(bytes);
  return 0;
}
