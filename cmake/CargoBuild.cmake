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

# What a program that takes in the static library must link besides: rustc --print native-static-libs.
set(gloo_rs_native_libs gcc_s util rt pthread m dl c)
# What find_package's COMPONENTS may ask for.
set(gloo_rs_features tcp ${GLOO_RS_CARGO_FEATURES})

set(gloo_rs_soname "libgloo_rs.so.${PROJECT_VERSION_MAJOR}")
set(gloo_rs_lib_dir "${PROJECT_BINARY_DIR}/lib")
set(gloo_rs_shared "${gloo_rs_lib_dir}/libgloo_rs.so.${PROJECT_VERSION}")
set(gloo_rs_archive "${gloo_rs_lib_dir}/libgloo_rs.a")
set(gloo_rs_links "${gloo_rs_lib_dir}/${gloo_rs_soname}" "${gloo_rs_lib_dir}/libgloo_rs.so")

# The library and the tool differ in features, and cargo gives both builds' libraries one name: a folder for each.
# The target is named, since another one of the environment or of cargo's configuration would be built instead.
set(cargo "${GLOO_RS_CARGO}" build --release --target "${rust_host}"
    --manifest-path "${PROJECT_SOURCE_DIR}/Cargo.toml" ${GLOO_RS_CARGO_FLAGS})
set(library_out "${PROJECT_BINARY_DIR}/cargo/library")
set(library_made "${library_out}/${rust_host}/release")
set(tool_out "${PROJECT_BINARY_DIR}/cargo/tool")
set(gloo_rs_tool_made "${tool_out}/${rust_host}/release/gloo-rs")
string(REPLACE ";" "," library_features "${GLOO_RS_CARGO_FEATURES}")

# Cargo knows what is out of date, so it is always asked; files that it leaves alone are not copied again.
file(MAKE_DIRECTORY "${gloo_rs_lib_dir}")
add_custom_target(gloo_rs_library ALL
  COMMAND ${cargo} --lib --no-default-features "--features=${library_features}" --target-dir "${library_out}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${library_made}/libgloo_rs.so" "${gloo_rs_shared}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${library_made}/libgloo_rs.a" "${gloo_rs_archive}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "libgloo_rs.so.${PROJECT_VERSION}" "${gloo_rs_lib_dir}/${gloo_rs_soname}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${gloo_rs_soname}" "${gloo_rs_lib_dir}/libgloo_rs.so"
  BYPRODUCTS "${gloo_rs_shared}" "${gloo_rs_archive}" ${gloo_rs_links}
  COMMENT "Building libgloo_rs with cargo"
  USES_TERMINAL VERBATIM)

add_library(gloo_rs::gloo_rs SHARED IMPORTED GLOBAL)
set_target_properties(gloo_rs::gloo_rs PROPERTIES
  IMPORTED_LOCATION "${gloo_rs_shared}"
  IMPORTED_SONAME "${gloo_rs_soname}"
  INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include")
add_dependencies(gloo_rs::gloo_rs gloo_rs_library)

add_library(gloo_rs::static STATIC IMPORTED GLOBAL)
set_target_properties(gloo_rs::static PROPERTIES
  IMPORTED_LOCATION "${gloo_rs_archive}"
  INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include"
  INTERFACE_LINK_LIBRARIES "${gloo_rs_native_libs}")
add_dependencies(gloo_rs::static gloo_rs_library)

if(GLOO_RS_BUILD_TOOL)
  add_custom_target(gloo_rs_tool ALL
    COMMAND ${cargo} --bin gloo-rs --no-default-features "--features=cli,${library_features}" --target-dir "${tool_out}"
    BYPRODUCTS "${gloo_rs_tool_made}"
    COMMENT "Building the tool gloo-rs with cargo"
    USES_TERMINAL VERBATIM)
  # One cargo at a time: each uses every core.
  add_dependencies(gloo_rs_tool gloo_rs_library)
endif()
