# Every fuzz target: tests/fuzz/fuzz_<name>.cpp, corpus/<name>, and below what it needs beside io/.
set(FUZZ_TARGETS
  safetensors
  safetensors_index
  safetensors_writer
  json
  config_json
  toml
  token_shards
  manifest
  checkpoint_folder
  dcp_metadata
  dcp_tensor
  json_lines
  text_documents
  gzip
  zstd
  parquet
  conversation
  tokenizer_json
  adapter
  store_messages)

# Sources of LibTorch-free parts that live in folders that link LibTorch; relative to the checkout.
set(FUZZ_SOURCES_config_json models/config/config_keys.cpp models/config/config_reader.cpp models/config/decoder_config.cpp
    models/config/decoder_config_parser.cpp models/config/expert_keys.cpp models/config/family.cpp models/config/text_table.cpp)
set(FUZZ_SOURCES_toml train/config/batch_ramp.cpp train/config/config_file.cpp train/config/warmup_checks.cpp train/base/edit_distance.cpp train/base/format.cpp train/config/lr_schedule.cpp
    train/config/option_table.cpp train/config/profiled_steps.cpp fsdp/strategy/strategy.cpp)
set(FUZZ_SOURCES_conversation text/chat/message.cpp)
set(FUZZ_SOURCES_store_messages fsdp/comm/store/key_table.cpp fsdp/comm/store/requests.cpp)

# Libraries beside fsdp_io.
set(FUZZ_LIBRARIES_json_lines fsdp_documents)
set(FUZZ_LIBRARIES_text_documents fsdp_documents)
set(FUZZ_LIBRARIES_gzip fsdp_documents ${ZLIB_LIBRARY})
set(FUZZ_LIBRARIES_zstd fsdp_documents ${ZSTD_LIBRARY})
set(FUZZ_LIBRARIES_parquet fsdp_documents)
set(FUZZ_LIBRARIES_tokenizer_json fsdp_tokenizer)
set(FUZZ_LIBRARIES_toml fsdp_tokenizer)

# Sources of custom mutators; relative to mutators/.
set(FUZZ_MUTATOR_safetensors safetensors.cpp safetensors_image.cpp)
set(FUZZ_MUTATOR_safetensors_index safetensors_index.cpp safetensors_image.cpp)
set(FUZZ_MUTATOR_token_shards token_shards.cpp)
set(FUZZ_MUTATOR_manifest manifest.cpp manifest_text.cpp)
set(FUZZ_MUTATOR_checkpoint_folder checkpoint_folder.cpp manifest_text.cpp)
set(FUZZ_MUTATOR_dcp_metadata dcp_metadata.cpp pickle_code.cpp)
set(FUZZ_MUTATOR_dcp_tensor dcp_tensor.cpp pickle_code.cpp)

find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)

# A program of target `name` called `program`; further arguments are sources.
function(fsdp_add_fuzz_program program name root)
  add_executable(${program} ${root}/tests/fuzz/fuzz_${name}.cpp ${root}/tests/fuzz/cost_gate.cpp ${ARGN})
  foreach(source ${FUZZ_SOURCES_${name}})
    target_sources(${program} PRIVATE ${root}/${source})
  endforeach()
  target_include_directories(${program} PRIVATE ${root} ${TOMLPLUSPLUS_INCLUDE_DIR})
  target_link_libraries(${program} PRIVATE ${FUZZ_LIBRARIES_${name}} fsdp_io)
endfunction()
