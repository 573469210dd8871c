#pragma once

// The public surface of libfsdp.
#include "fsdp/base/error.h"            // Error, ErrorCode
#include "fsdp/comm/collectives.h"      // sum_over_ranks, barrier, ...
#include "fsdp/comm/init.h"             // init, World
#include "fsdp/group/parameters.h"      // parameters, named_parameters, decay_groups, zero_grad
#include "fsdp/mesh/mesh.h"             // Mesh
#include "fsdp/optim/adamw.h"           // AdamW
#include "fsdp/optim/clip_grad_norm.h"  // clip_grad_norm_
#include "fsdp/optim/sgd.h"             // SGD
#include "fsdp/precision/precision.h"   // Precision
#include "fsdp/profile/session.h"       // profile::Session
#include "fsdp/strategy/strategy.h"     // Strategy
#include "fsdp/unit/fully_shard.h"      // fully_shard, ShardOptions

#include "fsdp/unit/scopes.h"  // Microbatch, no_sync, ForwardOnly, FullParameters
#include "fsdp/unit/unit.h"    // Unit
