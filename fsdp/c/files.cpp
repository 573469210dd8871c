// Checkpoints of the C interface.
#include <optional>
#include <string>

#include "fsdp/c/guard.h"
#include "fsdp/c/handles.h"
#include "fsdp/checkpoint/archive/archive.h"
#include "fsdp/checkpoint/checkpoint.h"

namespace fsdp::c {
namespace {

checkpoint::State state_of(fsdp_model* model, fsdp_optimizer* optimizer, const char* function) {
  checkpoint::State state{.model = given(model, function, "model").script->module};
  if (optimizer != nullptr) {
    FSDP_CHECK(optimizer->script == model->script, "[", function,
               "] optimizer: got that of another model, expected this one's.");
    state.optimizer = optimizer->adamw;
  }
  return state;
}

void set(int64_t* step, int64_t value) {
  if (step != nullptr) *step = value;
}

}  // namespace
}  // namespace fsdp::c

extern "C" {

fsdp_status fsdp_save(const char* folder, fsdp_model* model, fsdp_optimizer* optimizer) {
  return fsdp::c::guarded([&] {
    fsdp::checkpoint::save(&fsdp::c::given(folder, "fsdp_save", "folder"),
                           fsdp::c::state_of(model, optimizer, "fsdp_save"));
  });
}

fsdp_status fsdp_load(const char* folder, fsdp_model* model, fsdp_optimizer* optimizer, int64_t* step) {
  return fsdp::c::guarded([&] {
    const auto report = fsdp::checkpoint::load(&fsdp::c::given(folder, "fsdp_load", "folder"),
                                               fsdp::c::state_of(model, optimizer, "fsdp_load"));
    fsdp::c::set(step, report.step);
  });
}

fsdp_status fsdp_resume(const char* root, fsdp_model* model, fsdp_optimizer* optimizer, int64_t* step) {
  return fsdp::c::guarded([&] {
    const auto report = fsdp::checkpoint::resume(&fsdp::c::given(root, "fsdp_resume", "root"),
                                                 fsdp::c::state_of(model, optimizer, "fsdp_resume"));
    fsdp::c::set(step, report ? report->step : -1);
  });
}

fsdp_status fsdp_model_save(fsdp_model* model, const char* path) {
  return fsdp::c::guarded([&] {
    fsdp::save(fsdp::c::given(model, "fsdp_model_save", "model").script->module,
               &fsdp::c::given(path, "fsdp_model_save", "path"));
  });
}

}  // extern "C"
