# The targets gloo_rs::gloo_rs, gloo_rs::static and, if asked for, gloo-rs (the tool), built by cargo.

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
# A build target of the caller's environment would move cargo's output to a place unknown here.
set(cargo "${CMAKE_COMMAND}" -E env --unset=CARGO_BUILD_TARGET
    "${GLOO_RS_CARGO}" build --release --manifest-path "${PROJECT_SOURCE_DIR}/Cargo.toml" ${GLOO_RS_CARGO_FLAGS})
set(library_out "${PROJECT_BINARY_DIR}/cargo/library")
set(tool_out "${PROJECT_BINARY_DIR}/cargo/tool")
string(REPLACE ";" "," library_features "${GLOO_RS_CARGO_FEATURES}")

# Cargo knows what is out of date, so it is always asked; files that it leaves alone are not copied again.
file(MAKE_DIRECTORY "${gloo_rs_lib_dir}")
add_custom_target(gloo_rs_library ALL
  COMMAND ${cargo} --lib --no-default-features "--features=${library_features}" --target-dir "${library_out}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${library_out}/release/libgloo_rs.so" "${gloo_rs_shared}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${library_out}/release/libgloo_rs.a" "${gloo_rs_archive}"
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
    BYPRODUCTS "${tool_out}/release/gloo-rs"
    COMMENT "Building the tool gloo-rs with cargo"
    USES_TERMINAL VERBATIM)
  # One cargo at a time: each uses every core.
  add_dependencies(gloo_rs_tool gloo_rs_library)
endif()
