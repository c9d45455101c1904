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
set(rust_host "${CMAKE_MATCH_1}")

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

# The library and the tool differ in features, and cargo gives both builds' libraries one name: a folder for each.
# The target is named, since another one of the environment or of cargo's configuration would be built instead.
set(cargo_options --release --target "${rust_host}" --manifest-path "${PROJECT_SOURCE_DIR}/Cargo.toml" ${GLOO_RS_CARGO_FLAGS})
# As .cargo/config.toml, which counts in this folder only.
set(cargo_environment "${CMAKE_COMMAND}" -E env "CMAKE=${PROJECT_SOURCE_DIR}/cmake/rdma-core.sh")
set(library_out "${PROJECT_BINARY_DIR}/cargo/library")
set(library_made "${library_out}/${rust_host}/release")
set(tool_out "${PROJECT_BINARY_DIR}/cargo/tool")
set(gloo_rs_tool_made "${tool_out}/${rust_host}/release/gloo-rs")
string(REPLACE ";" "," library_features "${GLOO_RS_CARGO_FEATURES}")

# Cargo knows what is out of date, so it is always asked; files that it leaves alone are not copied again.
file(MAKE_DIRECTORY "${gloo_rs_lib_dir}")
add_custom_target(gloo_rs_library ALL
  COMMAND ${cargo_environment} "${GLOO_RS_CARGO}" rustc ${cargo_options} --lib --crate-type staticlib --no-default-features
          "--features=${library_features}" --target-dir "${library_out}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${library_made}/libgloo_rs.a" "${gloo_rs_archive}"
  BYPRODUCTS "${gloo_rs_archive}"
  COMMENT "Building libgloo_rs with cargo"
  USES_TERMINAL VERBATIM)

# A folder with gloo_rs.h alone: include/ also has Gloo's headers, which would hide those of another Gloo.
set(gloo_rs_include "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${gloo_rs_include}")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/include/gloo_rs.h" "${gloo_rs_include}/gloo_rs.h" COPY_ON_ERROR SYMBOLIC)

# The shared library is linked here, from the static one: rustc passes a version script of its own, without versions, and linkers
# take only one. Otherwise as rustc links it.
add_library(gloo_rs_shared SHARED "${gloo_rs_map}")
add_library(gloo_rs::gloo_rs ALIAS gloo_rs_shared)
add_dependencies(gloo_rs_shared gloo_rs_library)
set_target_properties(gloo_rs_shared PROPERTIES
  LINKER_LANGUAGE C
  OUTPUT_NAME gloo_rs
  VERSION "${PROJECT_VERSION}"
  SOVERSION "${gloo_rs_abi}"
  # The same for every configuration.
  LIBRARY_OUTPUT_DIRECTORY "${gloo_rs_lib_dir}$<0:>"
  LINK_DEPENDS "${gloo_rs_archive};${gloo_rs_map}")
target_include_directories(gloo_rs_shared INTERFACE "${gloo_rs_include}")
target_link_options(gloo_rs_shared PRIVATE
  "LINKER:--version-script=${gloo_rs_map}" LINKER:--gc-sections LINKER:--as-needed LINKER:-z,relro,-z,now)
target_link_libraries(gloo_rs_shared PRIVATE
  -Wl,--whole-archive "${gloo_rs_archive}" -Wl,--no-whole-archive ${gloo_rs_native_libs})

add_library(gloo_rs::static STATIC IMPORTED GLOBAL)
set_target_properties(gloo_rs::static PROPERTIES
  IMPORTED_LOCATION "${gloo_rs_archive}"
  INTERFACE_INCLUDE_DIRECTORIES "${gloo_rs_include}"
  INTERFACE_LINK_LIBRARIES "${gloo_rs_native_libs}")
add_dependencies(gloo_rs::static gloo_rs_library)

if(GLOO_RS_BUILD_TOOL)
  add_custom_target(gloo_rs_tool ALL
    COMMAND ${cargo_environment} "${GLOO_RS_CARGO}" build ${cargo_options} --bin gloo-rs --no-default-features "--features=${library_features}" --target-dir "${tool_out}"
    BYPRODUCTS "${gloo_rs_tool_made}"
    COMMENT "Building the tool gloo-rs with cargo"
    USES_TERMINAL VERBATIM)
endif()
