#pragma once

#include <memory>
#include <string>

#include "worker/data/dataset.h"

namespace muster::worker {

// What a token file's bytes say about it.
enum class TokenFormat { kUint16, kLlmcUint16, kLlmcUint32 };

// llm.c's header says which (docs/formats.md); a file without one is headerless uint16. InputError: a header that contradicts
// itself.
TokenFormat detect_token_format(const std::string& path);

// Maps the file. InputError: missing, empty, odd size, wrong magic, fewer or more tokens than the header says.
std::shared_ptr<TokenStream> open_token_file(const std::string& path, TokenFormat format);

}  // namespace muster::worker
