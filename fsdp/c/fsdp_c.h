/* libfsdp for C and everything that calls C: trains a TorchScript file, sharded over the ranks of a job
 * (docs/c_api.md).
 *
 * Every function that can fail returns a status; no C++ exception leaves them. Handles are opaque, are used by one
 * thread at a time, and are freed in any order. COLLECTIVE functions must be called by every rank, in the same order;
 * all others are local. C11. */
#ifndef FSDP_C_H
#define FSDP_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when a function or structure changes its meaning; what is only added does not raise it. */
#define FSDP_C_VERSION 1
int fsdp_c_version(void); /* of the library that was loaded */

/* As the exit codes of `fsdp` (docs/errors.md). */
typedef enum fsdp_status {
  FSDP_OK = 0,
  FSDP_INTERNAL = 1,
  FSDP_USAGE = 2,
  FSDP_DATA = 3,
  FSDP_CHECKPOINT = 4,
  FSDP_COMMUNICATION = 5,
  FSDP_NON_FINITE = 6,
  FSDP_FILE_SYSTEM = 7,
  FSDP_MEMORY = 8
} fsdp_status;

/* Why the last function that failed in this thread did, in one sentence or a few; "" before any has. Valid until the
 * next one fails. */
const char* fsdp_last_error(void);

typedef struct fsdp_world fsdp_world;

/* Joins the job that this process was started in by `fsdp launch`, torchrun, srun or mpirun; alone: a world of one.
 * Once in a process. COLLECTIVE. */
fsdp_status fsdp_init(fsdp_world** world);
void fsdp_world_free(fsdp_world* world); /* NULL is nothing to free, here and below */
int fsdp_rank(const fsdp_world* world);  /* -1 for NULL */
int fsdp_size(const fsdp_world* world);  /* -1 for NULL */

/* Replaces each of `count` values by its sum over all ranks, equal bits on each. COLLECTIVE. */
fsdp_status fsdp_sum(const fsdp_world* world, double* values, size_t count);

typedef struct fsdp_model fsdp_model;

/* A file of torch.jit.save() or torch::jit::Module::save(), on the CPU, in training mode. */
fsdp_status fsdp_model_open(const char* path, fsdp_model** model);
void fsdp_model_free(fsdp_model* model);

/* Whether the module `name` ("layers.0") of class `type` ("Linear"), whose parameters that no inner unit has taken have
 * `numel` elements, becomes a unit: a part of the model that is gathered, used and let go as a whole. 1: yes; 0: no;
 * negative: fsdp_shard() fails with FSDP_USAGE. Every rank must answer alike. Must return: no longjmp, no exception. */
typedef int (*fsdp_unit_choice)(void* context, const char* name, const char* type, int64_t numel);

/* What is cut over the ranks: nothing; the optimizer's state (ZeRO-1); gradients too (2); parameters too (3). */
typedef enum fsdp_strategy {
  FSDP_NO_SHARD = 0,
  FSDP_OPTIM = 1,
  FSDP_OPTIM_GRADS = 2,
  FSDP_OPTIM_GRADS_PARAMS = 3
} fsdp_strategy;

/* In what weights are gathered and computed with; main weights and sums of gradients stay fp32. */
typedef enum fsdp_precision { FSDP_FP32 = 0, FSDP_BF16 = 1 } fsdp_precision;

typedef struct fsdp_shard_options {
  size_t struct_size; /* sizeof(fsdp_shard_options), so that later versions may add members at the end */
  fsdp_strategy strategy;
  fsdp_precision precision;
} fsdp_shard_options;
#define FSDP_SHARD_OPTIONS_DEFAULT \
  { sizeof(fsdp_shard_options), FSDP_OPTIM_GRADS_PARAMS, FSDP_FP32 }

/* Shards the model, which must hold the same weights on every rank: units of the modules that `choose` picks, inner
 * ones first, and of what is left. `choose` NULL: one unit. `options` NULL: the default. COLLECTIVE. */
fsdp_status fsdp_shard(fsdp_model* model, const fsdp_world* world, fsdp_unit_choice choose, void* context,
                       const fsdp_shard_options* options);

/* Whether dropout drops and batch norms learn: 1 as after opening, or 0. */
fsdp_status fsdp_set_training(fsdp_model* model, int training);

typedef enum fsdp_dtype { FSDP_FLOAT32, FSDP_FLOAT64, FSDP_INT32, FSDP_INT64, FSDP_UINT8 } fsdp_dtype;

/* Numbers of the caller, dense, the last dimension varying fastest. They are copied before the function returns. */
typedef struct fsdp_array {
  const void* data;
  const int64_t* sizes; /* of `dims` dimensions; dims 0: one number */
  int dims;
  fsdp_dtype dtype;
} fsdp_array;

typedef enum fsdp_microbatch { FSDP_MORE_TO_COME = 0, FSDP_LAST = 1 } fsdp_microbatch;

/* Runs the model's forward(), which gets `inputs` and returns the loss of this rank's part of the batch (one number),
 * and the backward of `scale` times it: 1, or 1 / n for each of n microbatches. Gradients are means over the ranks;
 * those of microbatches add up until the step. `loss`, unless NULL: what forward() returned. COLLECTIVE, on a sharded
 * model. */
fsdp_status fsdp_backward(fsdp_model* model, const fsdp_array* inputs, size_t count, double scale,
                          fsdp_microbatch microbatch, double* loss);

/* Runs forward() without gradients, and copies the tensor that it returns, as fp32, to `output`, which has room for
 * `capacity` numbers; `written` says how many there are. Too little room: FSDP_USAGE, and `written` says how many are
 * needed. COLLECTIVE, on a sharded model: every rank takes part, if with other inputs. */
fsdp_status fsdp_forward(fsdp_model* model, const fsdp_array* inputs, size_t count, float* output, size_t capacity,
                         size_t* written);

typedef struct fsdp_optimizer fsdp_optimizer;

typedef struct fsdp_adamw_options {
  size_t struct_size; /* sizeof(fsdp_adamw_options) */
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay; /* of all parameters */
} fsdp_adamw_options;
#define FSDP_ADAMW_OPTIONS_DEFAULT \
  { sizeof(fsdp_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 0.01 }

/* Of a sharded model, which lives as long as its optimizer. `options` NULL: the default. */
fsdp_status fsdp_adamw(const fsdp_model* model, const fsdp_adamw_options* options, fsdp_optimizer** optimizer);
void fsdp_optimizer_free(fsdp_optimizer* optimizer);
fsdp_status fsdp_set_lr(fsdp_optimizer* optimizer, double lr);

/* Updates the weights and forgets the gradients. `max_norm` above 0: as if all gradients were scaled down to this
 * 2-norm. `norm`, unless NULL: the norm before. COLLECTIVE. */
fsdp_status fsdp_step(fsdp_optimizer* optimizer, double max_norm, double* norm);

/* A checkpoint of the model and, unless NULL, the optimizer; `folder` is named "step-<N>". It appears whole or not at
 * all, and any number of ranks reads it (docs/checkpoints.md). COLLECTIVE. */
fsdp_status fsdp_save(const char* folder, fsdp_model* model, fsdp_optimizer* optimizer);
/* `step`, unless NULL: the <N>. COLLECTIVE. */
fsdp_status fsdp_load(const char* folder, fsdp_model* model, fsdp_optimizer* optimizer, int64_t* step);
/* The newest checkpoint below `root` that is whole; `step` is -1 where there is none. COLLECTIVE. */
fsdp_status fsdp_resume(const char* root, fsdp_model* model, fsdp_optimizer* optimizer, int64_t* step);
/* The trained model as a TorchScript file again, which torch.jit.load() reads. COLLECTIVE. */
fsdp_status fsdp_model_save(fsdp_model* model, const char* path);

#ifdef __cplusplus
}
#endif

#endif
