#pragma once

#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace fsdp {

// The user's own files: byte for byte what torch::save(module, path) and torch::jit::Module::save(path) of the
// unsharded model write, and what torch::load() reads. Main weights; buffers and ignored parameters as rank 0 has them;
// no optimizer state. Rank 0 writes; no rank holds more of the model than its shards and one gathered group of
// parameters. COLLECTIVE over the world. The file appears whole or not at all: Error(kFileSystem) that names the path
// is thrown on every rank. Throws Error(kUsage) if nothing of the module is sharded.
void save(const torch::nn::Module& module, const std::string& path);
void save(const torch::jit::Module& module, const std::string& path);

// Reads such a file, written at any world size, into a sharded module of the same structure: each rank reads its own
// parts only. Values are written in place and converted to the module's dtypes; the parameters stay the same objects,
// as trainable as they were. A torch::nn module reads by its own load(); of a TorchScript module, parameters and
// buffers are read. COLLECTIVE over the world; every rank must be able to read the file. Throws, on every rank,
// Error(kCheckpoint) for a file that is missing or no archive, and for a tensor that is missing or has another shape,
// which it names; the module then keeps its weights.
// LibTorch reads the file, and compiles the TorchScript in it, which is not run: a file with a __setstate__, which
// loading would call, is Error(kCheckpoint). Even so, files of people you do not trust are better taken as
// model.safetensors: LibTorch's reader is not made for them.
void load(torch::nn::Module& module, const std::string& path);
void load(torch::jit::Module& module, const std::string& path);

}  // namespace fsdp
