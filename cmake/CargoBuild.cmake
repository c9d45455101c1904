# The targets gloo_rs::gloo_rs, gloo_rs::static and, if asked for, gloo-rs (the tool), built by cargo.

file(STRINGS "${PROJECT_SOURCE_DIR}/Cargo.toml" rust_line REGEX "^rust-version = " LIMIT_COUNT 1)
string(REGEX REPLACE "^rust-version = \"([0-9.]+).*" "\\1" rust_wanted "${rust_line}")
set(rust_hint "get Rust ${rust_wanted} or newer from https://rustup.rs (with rustup: rustup toolchain install stable), or name \
another cargo by -DGLOO_RS_CARGO=PATH")
if(NOT GLOO_RS_CARGO)
  message(FATAL_ERROR "There is no cargo on PATH, nor in CARGO_HOME or ~/.cargo: ${rust_hint}.")
endif()
# What it says of itself: its version, and the machine that it builds for by itself.
execute_process(COMMAND "${GLOO_RS_CARGO}" --version --verbose WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
                OUTPUT_VARIABLE cargo_says ERROR_VARIABLE cargo_error RESULT_VARIABLE cargo_failed)
if(NOT cargo_says MATCHES "^cargo ([0-9.]+)")
  message(FATAL_ERROR "${GLOO_RS_CARGO} does not say its version (${cargo_failed} ${cargo_error}): ${rust_hint}.")
endif()
set(rust_found "${CMAKE_MATCH_1}")
if(rust_found VERSION_LESS rust_wanted)
  message(FATAL_ERROR "${GLOO_RS_CARGO} is ${rust_found}: ${rust_hint}.")
endif()
if(NOT cargo_says MATCHES "\nhost: ([^\n]+)")
  message(FATAL_ERROR "${GLOO_RS_CARGO} does not say what machine it builds for: ${cargo_says}")
endif()
set(rust_target "${CMAKE_MATCH_1}")
if(GLOO_RS_CARGO_TARGET)
  set(rust_target "${GLOO_RS_CARGO_TARGET}")
endif()

# What a program that takes in the static library must link besides: rustc --print native-static-libs, without libibverbs, which it lists
# because the crate with its types does. The library finds it at run time.
set(gloo_rs_native_libs gcc_s util rt pthread m dl c)
# What find_package's COMPONENTS may ask for.
set(gloo_rs_features tcp ${GLOO_RS_CARGO_FEATURES})

# What programs are linked against, as soname and symbol versions: before 1.0 any minor version may break them.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(gloo_rs_abi "0.${PROJECT_VERSION_MINOR}")
else()
  set(gloo_rs_abi "${PROJECT_VERSION_MAJOR}")
endif()
set(gloo_rs_soname "libgloo_rs.so.${gloo_rs_abi}")
set(gloo_rs_lib_dir "${PROJECT_BINARY_DIR}/lib")
set(gloo_rs_archive "${gloo_rs_lib_dir}/libgloo_rs.a")
set(gloo_rs_map "${PROJECT_BINARY_DIR}/gloo_rs.map")
configure_file("${PROJECT_SOURCE_DIR}/cmake/gloo_rs.map.in" "${gloo_rs_map}" @ONLY)

# One call for library and tool, so that no crate is compiled for each. The target is named, since another one of the environment or of
# cargo's configuration would be built instead.
set(cargo_out "${PROJECT_BINARY_DIR}/cargo")
set(cargo_made "${cargo_out}/${rust_target}/release")
string(REPLACE ";" "," cargo_features "${GLOO_RS_CARGO_FEATURES}")
set(cargo_packages -p gloo_rs)
set(cargo_byproducts "${cargo_made}/libgloo_rs.a")
if(GLOO_RS_BUILD_TOOL)
  list(APPEND cargo_packages -p gloo-rs-tool)
  list(APPEND cargo_byproducts "${cargo_made}/gloo-rs")
endif()
# CMAKE as in .cargo/config.toml, which counts in this folder only.
set(cargo_build "${CMAKE_COMMAND}" -E env "CMAKE=${PROJECT_SOURCE_DIR}/cmake/rdma-core.sh" "GLOO_RS_CMAKE=${CMAKE_COMMAND}"
  "${GLOO_RS_CARGO}" build --release --target "${rust_target}" --manifest-path "${PROJECT_SOURCE_DIR}/Cargo.toml"
  --target-dir "${cargo_out}" ${cargo_packages} --no-default-features "--features=${cargo_features}" ${GLOO_RS_CARGO_FLAGS})

# Cargo knows what is out of date, so it is always asked; it leaves alone what is not.
file(MAKE_DIRECTORY "${gloo_rs_lib_dir}")
add_custom_target(gloo_rs_cargo ALL
  COMMAND ${cargo_build}
  BYPRODUCTS ${cargo_byproducts}
  COMMENT "Building gloo_rs with cargo"
  USES_TERMINAL VERBATIM)

# Nothing is installed with debug information, which is most of what cargo makes. If it is asked for, it goes into files of its own, where
# debuggers look for them: in the folder .debug beside the program or library, under the name in its section .gnu_debuglink.
if(NOT CMAKE_OBJCOPY OR NOT CMAKE_READELF)
  message(FATAL_ERROR "There is no objcopy, or no readelf, which take debug information out of what cargo builds (Debian: binutils).")
endif()
# debug_commands(VARIABLE FROM TO): the commands that make TO of FROM, without debug information.
function(debug_commands variable from to)
  set(commands COMMAND "${CMAKE_OBJCOPY}" --strip-debug "${from}" "${to}")
  if(GLOO_RS_DEBUG_INFO)
    get_filename_component(folder "${to}" DIRECTORY)
    get_filename_component(name "${to}" NAME)
    file(MAKE_DIRECTORY "${folder}/.debug")
    set(debug "${folder}/.debug/${name}.debug")
    set(commands COMMAND "${CMAKE_OBJCOPY}" --only-keep-debug "${from}" "${debug}"
                 COMMAND "${CMAKE_OBJCOPY}" --strip-debug "--add-gnu-debuglink=${debug}" "${from}" "${to}")
  endif()
  set(${variable} "${commands}" PARENT_SCOPE)
endfunction()

set(archive_script "${PROJECT_SOURCE_DIR}/cmake/archive.sh")
add_custom_command(OUTPUT "${gloo_rs_archive}"
  COMMAND "${archive_script}" "${CMAKE_OBJCOPY}" "${CMAKE_READELF}" "${cargo_made}/libgloo_rs.a" "${gloo_rs_archive}"
  DEPENDS gloo_rs_cargo "${cargo_made}/libgloo_rs.a" "${archive_script}"
  COMMENT "Making libgloo_rs.a without debug information, and with names of its own"
  VERBATIM)
add_custom_target(gloo_rs_library ALL DEPENDS "${gloo_rs_archive}")

# A folder with gloo_rs.h and gloo_rs.hpp alone: include/ also has Gloo's headers, which would hide those of another Gloo.
set(gloo_rs_include "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${gloo_rs_include}")
foreach(header gloo_rs.h gloo_rs.hpp)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/include/${header}" "${gloo_rs_include}/${header}" COPY_ON_ERROR SYMBOLIC)
endforeach()

# The shared library is linked here, from cargo's static one: rustc passes a version script of its own, without versions, and linkers
# take only one. Otherwise as rustc links it.
add_library(gloo_rs_shared SHARED "${gloo_rs_map}")
add_dependencies(gloo_rs_shared gloo_rs_library)
set(gloo_rs_shared_file "${gloo_rs_lib_dir}/libgloo_rs.so.${PROJECT_VERSION}")
set_target_properties(gloo_rs_shared PROPERTIES
  LINKER_LANGUAGE C
  OUTPUT_NAME gloo_rs
  VERSION "${PROJECT_VERSION}"
  SOVERSION "${gloo_rs_abi}"
  # The same for every configuration.
  LIBRARY_OUTPUT_DIRECTORY "${gloo_rs_lib_dir}$<0:>"
  DEBUG_POSTFIX ""
  LINK_DEPENDS "${gloo_rs_archive};${gloo_rs_map}")
target_link_options(gloo_rs_shared PRIVATE
  "LINKER:--version-script,${gloo_rs_map}" LINKER:--gc-sections LINKER:--as-needed LINKER:-z,relro,-z,now)
set(whole "${gloo_rs_archive}")
if(GLOO_RS_DEBUG_INFO)
  set(whole "${cargo_made}/libgloo_rs.a")
  debug_commands(commands "${gloo_rs_shared_file}" "${gloo_rs_shared_file}")
  add_custom_command(TARGET gloo_rs_shared POST_BUILD ${commands} VERBATIM)
endif()
target_link_libraries(gloo_rs_shared PRIVATE
  -Wl,--whole-archive "${whole}" -Wl,--no-whole-archive ${gloo_rs_native_libs})

# Imported targets, as find_package makes them: projects that export what they link with these name them, and need not export them.
add_library(gloo_rs::gloo_rs SHARED IMPORTED GLOBAL)
set_target_properties(gloo_rs::gloo_rs PROPERTIES
  IMPORTED_LOCATION "${gloo_rs_shared_file}"
  IMPORTED_SONAME "${gloo_rs_soname}"
  INTERFACE_INCLUDE_DIRECTORIES "${gloo_rs_include}")
add_dependencies(gloo_rs::gloo_rs gloo_rs_shared)

add_library(gloo_rs::static STATIC IMPORTED GLOBAL)
set_target_properties(gloo_rs::static PROPERTIES
  IMPORTED_LOCATION "${gloo_rs_archive}"
  INTERFACE_INCLUDE_DIRECTORIES "${gloo_rs_include}"
  INTERFACE_LINK_LIBRARIES "${gloo_rs_native_libs}")
add_dependencies(gloo_rs::static gloo_rs_library)

if(GLOO_RS_BUILD_TOOL)
  set(gloo_rs_tool_file "${PROJECT_BINARY_DIR}/bin/gloo-rs")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  debug_commands(commands "${cargo_made}/gloo-rs" "${gloo_rs_tool_file}")
  add_custom_command(OUTPUT "${gloo_rs_tool_file}" ${commands} DEPENDS gloo_rs_cargo "${cargo_made}/gloo-rs"
    COMMENT "Making the tool gloo-rs without debug information" VERBATIM)
  add_custom_target(gloo_rs_tool ALL DEPENDS "${gloo_rs_tool_file}")
endif()
