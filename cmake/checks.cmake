# Checks of what the build needs, before anything is compiled. `${TFSWAP_TENSORFLOW}` and others are
# explained in CMakeLists.txt.

# The releases that tests/versions has passed with.
set(supported_tensorflow 2.20 2.21)

set(install_compiler "\
    Debian, Ubuntu   apt-get install g++
    Fedora, RHEL     dnf install gcc-c++
    openSUSE         zypper install gcc-c++
    Arch             pacman -S gcc
    Alpine is not supported: TensorFlow has no wheel for musl
  g++ 11 or newer is needed. One with another name: CXX=/path/to/g++ pip install .")
set(install_tensorflow "\
    pip install \"tensorflow-cpu>=2.20,<2.22\"     for a machine without a GPU
    pip install \"tensorflow>=2.20,<2.22\"         for one with a GPU
  then install tfswap again.")

# Sets `variable` to the version of an installed Python package, by the record beside it.
function(version_of package variable)
  get_filename_component(parent ${package} DIRECTORY)
  get_filename_component(name ${package} NAME)
  foreach(distribution ${name} ${name}_cpu tf_nightly tf_nightly_cpu)
    file(GLOB records ${parent}/${distribution}-*.dist-info)
    foreach(record IN LISTS records)
      string(REGEX REPLACE "^.*-(.*)\\.dist-info$" "\\1" version ${record})
      set(${variable} ${version} PARENT_SCOPE)
      return()
    endforeach()
  endforeach()
  fail("${package} has no record of its version (${distribution}-*.dist-info)")
endfunction()

function(fail)
  string(JOIN "" text ${ARGN})
  message(FATAL_ERROR "tfswap cannot be built: ${text}")
endfunction()

if(NOT CMAKE_HOST_SYSTEM_NAME STREQUAL "Linux")
  fail("it runs on Linux, and this is ${CMAKE_HOST_SYSTEM_NAME}.")
endif()

set(compiler g++)
if(DEFINED ENV{CXX})
  separate_arguments(compiler UNIX_COMMAND "$ENV{CXX}")
  list(GET compiler 0 compiler)
endif()
find_program(found_compiler ${compiler} NO_CACHE)
if(NOT found_compiler)
  fail("the C++ compiler (${compiler}) was not found. Install one:\n" "${install_compiler}")
endif()

if(NOT EXISTS "${TFSWAP_PYTHON_INCLUDE}/Python.h")
  fail("Python's headers are missing (${TFSWAP_PYTHON_INCLUDE}/Python.h). Install them:\n"
       "    Debian, Ubuntu   apt-get install python3-dev\n"
       "    Fedora, RHEL     dnf install python3-devel")
endif()

if(NOT TFSWAP_TENSORFLOW)
  fail("no TensorFlow was found. tfswap's library is compiled against the installed one. Install "
       "it first:\n" "${install_tensorflow}\n"
       "If it is installed, and your installer builds in an environment of its own:\n"
       "    pip install setuptools pybind11 cmake ninja\n"
       "    pip install --no-build-isolation .")
endif()
foreach(package IN LISTS TFSWAP_TENSORFLOW)
  version_of(${package} version)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" release "${version}")
  if(NOT release IN_LIST supported_tensorflow AND NOT DEFINED ENV{TFSWAP_BUILD_UNTESTED})
    string(JOIN ", " supported ${supported_tensorflow})
    fail("TensorFlow ${version} is installed, and tfswap is tested with ${supported} (its C++ "
         "interface changes between releases). Install one of these:\n" "${install_tensorflow}\n"
         "To try yours nevertheless: TFSWAP_BUILD_UNTESTED=1 pip install .")
  endif()
endforeach()
