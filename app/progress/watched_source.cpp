#include "app/progress/watched_source.h"

namespace fsdp::app {
namespace {

int64_t bytes_of(const io::WeightTensor& tensor, int64_t numel) {
  return tensor.dtype ? numel * static_cast<int64_t>(io::item_size(*tensor.dtype)) : 0;
}

}  // namespace

void WatchedSource::read(const std::vector<size_t>& wanted, const io::PieceSink& sink) const {
  source_.read(wanted, [&](size_t tensor, int64_t first, int64_t count, const void* elements) {
    sink(tensor, first, count, elements);
    progress_.add(bytes_of(tensors()[tensor], count));
  });
}

void copy_with_progress(const std::string& verb, const io::WeightSource& source, const std::vector<size_t>& wanted,
                        const std::function<void(const io::WeightSource& watched)>& copy) {
  int64_t total = 0;
  for (const size_t tensor : wanted) total += bytes_of(source.tensors()[tensor], source.tensors()[tensor].numel());
  train::Console console(train::Console::detect(stdout, 0));
  ProgressLine progress(console, verb, total);
  copy(WatchedSource(source, progress));
}

}  // namespace fsdp::app
