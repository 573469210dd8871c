/* A program in C11 that trains through fsdp_c.h; c_api_test.cpp writes its model and compares.
 *
 *   c_training train MODEL FOLDER     6 steps, a checkpoint at step 3, the trained model
 *   c_training resume MODEL FOLDER    the last 3 of them from the checkpoint
 *   c_training leave MODEL FOLDER     rank 1 ends after a step; rank 0 must be told by a status
 *   c_training mistakes MODEL FOLDER  each must be told, none may end the program
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/c/fsdp_c.h"

enum { kRows = 8, kWidth = 5, kSteps = 6, kSavedStep = 3 };

static void check(fsdp_status status, const char* what) {
  if (status == FSDP_OK) return;
  fprintf(stderr, "%s: %d: %s\n", what, (int)status, fsdp_last_error());
  exit((int)status);
}

/* As in c_api_test.cpp. */
static void make_batch(int step, int64_t* ids, float* targets) {
  uint32_t state = (uint32_t)step;
  for (int row = 0; row < kRows; ++row) {
    state = state * 1103515245u + 12345u;
    ids[row] = (state >> 16) % 11;
    for (int i = 0; i < kWidth; ++i) {
      state = state * 1103515245u + 12345u;
      targets[row * kWidth + i] = (float)((state >> 16) & 0x7fff) / 32768.0f - 0.5f;
    }
  }
}

/* Rows [first, first + count) of a batch. */
static double backward(fsdp_model* model, int step, int first, int count, double scale, fsdp_microbatch microbatch) {
  int64_t ids[kRows];
  float targets[kRows * kWidth];
  make_batch(step, ids, targets);
  const int64_t id_sizes[] = {count};
  const int64_t target_sizes[] = {count, kWidth};
  const fsdp_array inputs[] = {{ids + first, id_sizes, 1, FSDP_INT64},
                               {targets + first * kWidth, target_sizes, 2, FSDP_FLOAT32}};
  double loss = 0;
  check(fsdp_backward(model, inputs, 2, scale, microbatch, &loss), "backward");
  return loss;
}

static int choose_by_name(void* context, const char* name, const char* type, int64_t numel) {
  ++*(int*)context;
  return strcmp(name, "first") == 0 && strcmp(type, "First") == 0 && numel > 0;
}

static fsdp_model* open_sharded(const fsdp_world* world, const char* path) {
  fsdp_model* model = NULL;
  check(fsdp_model_open(path, &model), "open");
  int asked = 0;
  check(fsdp_shard(model, world, choose_by_name, &asked, NULL), "shard");
  if (asked < 2) {
    fprintf(stderr, "the callback was asked %d times, expected each of 2 modules\n", asked);
    exit(1);
  }
  return model;
}

/* Every second step in two microbatches. */
static void take_step(const fsdp_world* world, fsdp_model* model, fsdp_optimizer* optimizer, int step) {
  const int mine = kRows / fsdp_size(world);
  const int first = mine * fsdp_rank(world);
  double loss = 0;
  if (step % 2 == 0) {
    loss = backward(model, step, first, mine / 2, 0.5, FSDP_MORE_TO_COME) / 2;
    loss += backward(model, step, first + mine / 2, mine / 2, 0.5, FSDP_LAST) / 2;
  } else {
    loss = backward(model, step, first, mine, 1, FSDP_LAST);
  }
  double norm = 0;
  check(fsdp_step(optimizer, 0.5, &norm), "step");
  check(fsdp_sum(world, &loss, 1), "sum");
  if (fsdp_rank(world) == 0) printf("step %d loss %.17g norm %.9g\n", step, loss / fsdp_size(world), norm);
}

static void train(const fsdp_world* world, const char* path, const char* folder, int resumes) {
  char name[512];
  fsdp_model* model = open_sharded(world, path);
  fsdp_adamw_options options = FSDP_ADAMW_OPTIONS_DEFAULT;
  options.lr = 0.05;
  fsdp_optimizer* optimizer = NULL;
  check(fsdp_adamw(model, &options, &optimizer), "adamw");
  int64_t done = 0;
  if (resumes) check(fsdp_resume(folder, model, optimizer, &done), "resume");
  for (int step = (int)done + 1; step <= kSteps; ++step) {
    take_step(world, model, optimizer, step);
    snprintf(name, sizeof(name), "%s/step-%d", folder, step);
    if (step == kSavedStep) check(fsdp_save(name, model, optimizer), "save");
  }
  snprintf(name, sizeof(name), "%s/%s.pt", folder, resumes ? "resumed" : "trained");
  check(fsdp_model_save(model, name), "save the model");
  fsdp_model_free(model);
  fsdp_optimizer_free(optimizer);
}

static void leave(const fsdp_world* world, const char* path) {
  fsdp_model* model = open_sharded(world, path);
  fsdp_optimizer* optimizer = NULL;
  check(fsdp_adamw(model, NULL, &optimizer), "adamw");
  take_step(world, model, optimizer, 1);
  if (fsdp_rank(world) == 1) _Exit(0);
  const int64_t ids[] = {1};
  const float targets[kWidth] = {0};
  const int64_t sizes[] = {1, kWidth};
  const fsdp_array inputs[] = {{ids, sizes, 1, FSDP_INT64}, {targets, sizes, 2, FSDP_FLOAT32}};
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < 3 && status == FSDP_OK; ++i) {
    status = fsdp_backward(model, inputs, 2, 1, FSDP_LAST, NULL);
    if (status == FSDP_OK) status = fsdp_step(optimizer, 0, NULL);
  }
  printf("lonely: %d: %s\n", (int)status, fsdp_last_error());
  fflush(stdout);
  _Exit(0); /* nothing can be freed together any more */
}

static int refuse(void* context, const char* name, const char* type, int64_t numel) {
  (void)context, (void)name, (void)type, (void)numel;
  return -7;
}

static void expect(fsdp_status got, fsdp_status expected, const char* part) {
  if (got == expected && strstr(fsdp_last_error(), part) != NULL) return;
  fprintf(stderr, "got %d with '%s', expected %d with '%s'\n", (int)got, fsdp_last_error(), (int)expected, part);
  exit(1);
}

static void make_mistakes(const fsdp_world* world, const char* path, const char* folder) {
  char missing[512];
  snprintf(missing, sizeof(missing), "%s/missing", folder);
  fsdp_model* model = NULL;
  fsdp_optimizer* optimizer = NULL;
  expect(fsdp_model_open(missing, &model), FSDP_CHECKPOINT, missing);
  expect(fsdp_model_open(NULL, &model), FSDP_USAGE, "path: got NULL");
  check(fsdp_model_open(path, &model), "open");
  expect(fsdp_backward(model, NULL, 0, 1, FSDP_LAST, NULL), FSDP_USAGE, "not sharded");
  expect(fsdp_adamw(model, NULL, &optimizer), FSDP_USAGE, "not sharded");
  fsdp_shard_options old = FSDP_SHARD_OPTIONS_DEFAULT;
  old.struct_size = 3;
  expect(fsdp_shard(model, world, NULL, NULL, &old), FSDP_USAGE, "struct_size: got 3");
  expect(fsdp_shard(model, world, refuse, NULL, NULL), FSDP_USAGE, "refused 'first' of class First with -7");
  fsdp_model_free(model);
  model = open_sharded(world, path);
  expect(fsdp_shard(model, world, NULL, NULL, NULL), FSDP_USAGE, "sharded already");
  expect(fsdp_backward(model, NULL, 0, 1, FSDP_LAST, NULL), FSDP_INTERNAL, "missing value");
  const float number = 1;
  const fsdp_array strange[] = {{&number, NULL, 0, (fsdp_dtype)99}, {&number, NULL, 2, FSDP_FLOAT32}};
  expect(fsdp_backward(model, strange, 1, 1, FSDP_LAST, NULL), FSDP_USAGE, "dtype: got 99");
  expect(fsdp_backward(model, strange + 1, 1, 1, FSDP_LAST, NULL), FSDP_USAGE, "dims: got 2 and sizes NULL");
  check(fsdp_adamw(model, NULL, &optimizer), "adamw");
  expect(fsdp_step(optimizer, -1, NULL), FSDP_USAGE, "max_norm: got -1");
  expect(fsdp_step(NULL, 0, NULL), FSDP_USAGE, "optimizer: got NULL");
  expect(fsdp_load(missing, model, optimizer, NULL), FSDP_CHECKPOINT, missing);
  int64_t step = 0;
  check(fsdp_resume(missing, model, optimizer, &step), "resume from nothing");
  if (step != -1) exit(1);
  /* What was refused left a model that trains. */
  take_step(world, model, optimizer, 1);
  fsdp_optimizer_free(optimizer);
  fsdp_model_free(model);
  fsdp_optimizer_free(NULL);
  fsdp_model_free(NULL);
}

/* The loss of all rows, which every rank computes alike; too little room is told first. */
static void evaluate(const fsdp_world* world, const char* path) {
  fsdp_model* model = open_sharded(world, path);
  int64_t ids[kRows];
  float targets[kRows * kWidth];
  make_batch(1, ids, targets);
  const int64_t id_sizes[] = {kRows};
  const int64_t target_sizes[] = {kRows, kWidth};
  const fsdp_array inputs[] = {{ids, id_sizes, 1, FSDP_INT64}, {targets, target_sizes, 2, FSDP_FLOAT32}};
  float loss = 0;
  size_t written = 0;
  expect(fsdp_forward(model, inputs, 2, NULL, 0, &written), FSDP_USAGE, "room for 1 numbers");
  check(fsdp_set_training(model, 0), "set training");
  check(fsdp_forward(model, inputs, 2, &loss, written, &written), "forward");
  if (fsdp_rank(world) == 0) printf("evaluated %.9g\n", loss);
  fsdp_model_free(model);
}

int main(int argc, char** argv) {
  if (argc != 4 || fsdp_c_version() != FSDP_C_VERSION) return 2;
  fsdp_world* world = NULL;
  check(fsdp_init(&world), "init");
  if (strcmp(argv[1], "mistakes") == 0) {
    make_mistakes(world, argv[2], argv[3]);
    evaluate(world, argv[2]);
  } else if (strcmp(argv[1], "leave") == 0) {
    leave(world, argv[2]);
  } else {
    train(world, argv[2], argv[3], strcmp(argv[1], "resume") == 0);
  }
  fsdp_world_free(world);
  return 0;
}
