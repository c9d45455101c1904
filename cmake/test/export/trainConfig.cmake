include(CMakeFindDependencyMacro)
find_dependency(gloo_rs)
include("${CMAKE_CURRENT_LIST_DIR}/trainTargets.cmake")
