#pragma once

// The public surface of libfsdp.
#include "fsdp/base/advice.h"                              // set_advice_handler
#include "fsdp/base/error.h"                               // Error, ErrorCode
#include "fsdp/base/load_cuda.h"                           // load_cuda
#include "fsdp/checkpoint/archive/archive.h"               // save, load
#include "fsdp/checkpoint/checkpoint.h"                    // checkpoint::save, load, resume, Saver
#include "fsdp/checkpoint/state_dict.h"                    // full_state_dict, sharded_state_dict, ...
#include "fsdp/comm/collectives.h"                         // sum_over_ranks, barrier, ...
#include "fsdp/comm/init.h"                                // init, World
#include "fsdp/deferred/deferred_init.h"                   // deferred
#include "fsdp/functional/sharded_step.h"                  // functional::ShardedStep
#include "fsdp/graph/graphed_function.h"                   // GraphedFunction
#include "fsdp/group/parameters.h"                         // parameters, named_parameters, decay_groups, zero_grad
#include "fsdp/mesh/mesh.h"                                // Mesh
#include "fsdp/optim/adafactor/adafactor.h"                // Adafactor, adafactor_groups
#include "fsdp/optim/adamw.h"                              // AdamW
#include "fsdp/optim/clip_grad_norm.h"                     // clip_grad_norm_
#include "fsdp/optim/ema/ema.h"                            // Ema
#include "fsdp/optim/grad_scaler.h"                        // GradScaler
#include "fsdp/optim/lion.h"                               // Lion
#include "fsdp/optim/low_bit_adamw.h"                      // LowBitAdamW
#include "fsdp/optim/muon.h"                               // Muon, muon_groups
#include "fsdp/optim/schedule_free/schedule_free_adamw.h"  // ScheduleFreeAdamW
#include "fsdp/optim/sgd.h"                                // SGD
#include "fsdp/parallel/context_attention.h"               // parallel::context_attention
#include "fsdp/parallel/cross_entropy.h"                   // parallel::vocab_cross_entropy
#include "fsdp/parallel/experts.h"                         // parallel::Mixture, Experts, route
#include "fsdp/parallel/layers.h"                          // parallel::ColumnLinear, RowLinear, VocabEmbedding
#include "fsdp/parallel/parallelize.h"                     // parallel::parallelize
#include "fsdp/parallel/random.h"                          // parallel::share_random_state
#include "fsdp/parallel/regions.h"                         // parallel::enter_parts, leave_parts, ...
#include "fsdp/parallel/ring_attention.h"                  // parallel::ring_attention, ContextExchange
#include "fsdp/parallel/zigzag.h"                          // parallel::zigzag_part, zigzag_positions
#include "fsdp/pipeline/pipeline.h"                        // pipeline::Pipeline
#include "fsdp/precision/fp8.h"                            // fp8
#include "fsdp/precision/fp8_delayed_scales.h"             // Fp8DelayedScales
#include "fsdp/precision/precision.h"                      // Precision
#include "fsdp/profile/session.h"                          // profile::Session
#include "fsdp/recompute/recompute.h"                      // recompute
#include "fsdp/recompute/recompute_input.h"                // recompute_input
#include "fsdp/strategy/strategy.h"                        // Strategy
#include "fsdp/unit/buffers.h"                             // sync_buffers
#include "fsdp/unit/forward.h"                             // forward, touch
#include "fsdp/unit/fully_shard.h"                         // fully_shard, ShardOptions
#include "fsdp/unit/scopes.h"                              // Microbatch, no_sync, ForwardOnly, full_parameters
#include "fsdp/unit/shard_where.h"                         // shard_where
#include "fsdp/unit/unit.h"                                // Unit
