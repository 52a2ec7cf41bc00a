// Precompiled for the targets that build models: what most of their files include anyway.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
