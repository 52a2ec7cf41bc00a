#pragma once

#include <cstdint>
#include <string>

#include "worker/data/dataset.h"

namespace muster::worker {

// Reads the whole stream, on several threads where it is large, and returns its highest token; about 1 GB/s. vocab_size 0: no
// bound. InputError: a token that is not below vocab_size; the first one is named with its position. `path` is for messages.
int64_t check_tokens(const std::string& path, const TokenStream& stream, int64_t vocab_size);

}  // namespace muster::worker
