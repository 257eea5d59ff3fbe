# Compiler settings of every target, and xjit_library(): one target a folder, linked to what it may include.
find_package(absl REQUIRED)
find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_program(XJIT_CCACHE ccache)
if(XJIT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${XJIT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${XJIT_CCACHE})
endif()
find_program(XJIT_MOLD mold)
if(XJIT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
# Most of the Rust archive is never called: what is dropped need not be resident.
add_link_options(-Wl,--gc-sections)
# Two links at once are slower than one on a small machine, and need twice the memory.
set_property(GLOBAL PROPERTY JOB_POOLS link=1)
set(CMAKE_JOB_POOL_LINK link)

# Tables are written with designated initialisers that leave out what has a default.
add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers -fno-strict-aliasing -g1)
add_compile_definitions(XBYAK_NO_EXCEPTION)
# The baseline is x86-64: what needs more is emitted at run time for the machine at hand.
if(XJIT_SANITIZE)
  # With sanitizers g++ 12 sees uninitialised members in every std::variant that is moved (GCC bug 105562 and its kin).
  add_compile_options(-Wno-maybe-uninitialized -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

function(xjit_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
endfunction()
