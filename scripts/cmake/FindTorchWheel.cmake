# Imported targets for LibTorch out of a PyPI wheel (or an unpacked LibTorch), without the wheel's own CMake files: those
# refuse a machine that has no CUDA toolkit, although the libraries themselves load and run there.
#
# In:   MUSTER_TORCH  folder that holds include/ and lib/ (default: the torch of .venv)
# Out:  torch::cpu    headers, libtorch_cpu, libc10
#       torch::cuda   torch::cpu + libtorch_cuda, libc10_cuda (made by torch_wheel_add_cuda, which needs CUDAToolkit)
if(NOT MUSTER_TORCH)
  file(GLOB found ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(found)
    list(GET found 0 found)
    set(MUSTER_TORCH ${found} CACHE PATH "LibTorch: folder with include/ and lib/" FORCE)
  endif()
endif()
if(NOT EXISTS "${MUSTER_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "no LibTorch: found no lib/libtorch_cpu.so under '${MUSTER_TORCH}'; run ./scripts/setup, or give -DMUSTER_TORCH=<folder of a LibTorch >= 2.9>")
endif()
set(torch_version "unknown")
if(EXISTS "${MUSTER_TORCH}/version.py")
  file(STRINGS "${MUSTER_TORCH}/version.py" line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${line}")
elseif(EXISTS "${MUSTER_TORCH}/build-version")
  file(STRINGS "${MUSTER_TORCH}/build-version" line LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${line}")
endif()
if(torch_version VERSION_LESS 2.9)
  message(FATAL_ERROR "LibTorch under '${MUSTER_TORCH}' is ${torch_version}; wanted >= 2.9")
endif()

add_library(torch::cpu INTERFACE IMPORTED)
target_include_directories(torch::cpu SYSTEM INTERFACE ${MUSTER_TORCH}/include ${MUSTER_TORCH}/include/torch/csrc/api/include)
target_link_libraries(torch::cpu INTERFACE ${MUSTER_TORCH}/lib/libtorch_cpu.so ${MUSTER_TORCH}/lib/libc10.so)
# The libraries' own dependencies (cudart, cupti, gomp) lie beside them and are found at run time.
target_link_options(torch::cpu INTERFACE -Wl,--allow-shlib-undefined)
target_compile_definitions(torch::cpu INTERFACE TORCH_ASSERT_ONLY_METHOD_OPERATORS)

function(torch_wheel_add_cuda)
  add_library(torch::cuda INTERFACE IMPORTED)
  # --no-as-needed: no symbol of libtorch_cuda is referenced; it registers itself when loaded.
  target_link_libraries(torch::cuda INTERFACE torch::cpu -Wl,--no-as-needed ${MUSTER_TORCH}/lib/libtorch_cuda.so
                        ${MUSTER_TORCH}/lib/libc10_cuda.so -Wl,--as-needed CUDA::cudart)
endfunction()
message(STATUS "LibTorch ${torch_version}: ${MUSTER_TORCH}")
