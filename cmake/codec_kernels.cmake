# The encoders that run on a GPU: machine code, and the PTX that an older driver than nvcc compiles
# by itself. Without nvcc, they are left out.
set(architectures 80 90)
# nvcc writes its own release's version, which drivers of older releases refuse. This one is the
# first with those architectures, so each of their drivers knows it; the assembler checks that it
# is enough.
set(ptx_version 7.0)

if(DEFINED ENV{NVCC})
  set(nvcc $ENV{NVCC})
else()
  find_program(TFSWAP_NVCC nvcc HINTS /usr/local/cuda/bin)
  set(nvcc ${TFSWAP_NVCC})
endif()
# The compiler for the host only reads ahead here, so any release of it will do.
set(compile ${nvcc} -ptx -arch=compute_80 -std=c++17
    -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler)
if(nvcc)
  file(WRITE ${CMAKE_BINARY_DIR}/nvcc/probe.cu "__global__ void probe() {}\n")
  execute_process(
    COMMAND ${compile} ${CMAKE_BINARY_DIR}/nvcc/probe.cu -o ${CMAKE_BINARY_DIR}/nvcc/probe.ptx
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed AND DEFINED ENV{NVCC})
    fail("the CUDA compiler named by NVCC (${nvcc}) does not run: ${failed} ${output}\n"
         "Name another one, or none: without it only codecs on the GPU are left out.")
  elseif(failed)
    message(NOTICE "GPU codecs are left out: ${nvcc} fails:\n${output}")
    return()
  endif()
else()
  message(NOTICE "GPU codecs are left out: nvcc was not found. To have them, install CUDA's nvcc "
                 "or name it (NVCC=/path/to/nvcc), then install tfswap again.")
  return()
endif()

set(source ${CMAKE_SOURCE_DIR}/tfswap/cc/cuda/codec_kernels.cu)
set(ptx ${CMAKE_BINARY_DIR}/tfswap/native/codec_kernels.ptx)
set(fatbin ${CMAKE_BINARY_DIR}/tfswap/native/codec_kernels.fatbin)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/tfswap/native)
add_custom_command(
  OUTPUT ${ptx}
  COMMAND ${compile} -I${CMAKE_SOURCE_DIR}/tfswap/cc -MMD -MF ${ptx}.d ${source} -o ${ptx}
  COMMAND sed -i "s/^\\.version .*/.version ${ptx_version}/" ${ptx}
  DEPENDS ${source}
  DEPFILE ${ptx}.d
  VERBATIM)
set(generate -gencode arch=compute_80,code=compute_80)
foreach(architecture IN LISTS architectures)
  list(APPEND generate -gencode arch=compute_80,code=sm_${architecture})
endforeach()
add_custom_command(
  OUTPUT ${fatbin}
  # A driver need not know how this release compresses.
  COMMAND ${nvcc} -fatbin --no-compress ${ptx} -o ${fatbin} ${generate}
  DEPENDS ${ptx}
  VERBATIM)
add_custom_target(codec_kernels ALL DEPENDS ${ptx} ${fatbin})
install(FILES ${ptx} ${fatbin} DESTINATION tfswap/native)
