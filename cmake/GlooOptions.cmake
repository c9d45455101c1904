# The options of Gloo's own CMake project, so that a project which sets them needs no change. Each is honoured, or refused with the
# reason. They only add to what GLOO_RS_CARGO_FEATURES names.

file(READ "${PROJECT_SOURCE_DIR}/Cargo.toml" manifest)
set(wanted USE_REDIS:redis USE_IBVERBS:ibverbs USE_TCP_OPENSSL_LINK:tls USE_TCP_OPENSSL_LOAD:tls)
if(manifest MATCHES "\nuv = ")
  list(APPEND wanted USE_LIBUV:uv)
endif() # Else gloo/transport/uv is TCP by the library's own threads.
foreach(pair IN LISTS wanted)
  string(REGEX MATCH "^(.*):(.*)$" pair "${pair}")
  set(gloo_option "${CMAKE_MATCH_1}")
  set(feature "${CMAKE_MATCH_2}")
  if(NOT ${gloo_option} OR feature IN_LIST GLOO_RS_CARGO_FEATURES)
    continue()
  endif()
  if(NOT manifest MATCHES "\n${feature} = ")
    message(FATAL_ERROR "${gloo_option} is ON, but gloo_rs ${PROJECT_VERSION} has no part called ${feature}: set ${gloo_option} to OFF.")
  endif()
  list(APPEND GLOO_RS_CARGO_FEATURES ${feature})
endforeach()

foreach(gloo_option USE_CUDA USE_ROCM)
  if(${gloo_option})
    message(FATAL_ERROR "${gloo_option} is ON, but gloo_rs ${PROJECT_VERSION} has no collectives on memory of a GPU, and no target "
                        "gloo_cuda or gloo_hip: set ${gloo_option} to OFF before this folder is added.")
  endif()
endforeach()

# As Gloo: without it BUILD_SHARED_LIBS decides.
set(GLOO_STATIC_OR_SHARED "${GLOO_STATIC_OR_SHARED}" CACHE STRING "What the target gloo links: STATIC, SHARED, or by BUILD_SHARED_LIBS")
if(NOT GLOO_STATIC_OR_SHARED MATCHES "^(STATIC|SHARED|)$")
  message(FATAL_ERROR "GLOO_STATIC_OR_SHARED is ${GLOO_STATIC_OR_SHARED}, but must be STATIC, SHARED or empty.")
endif()
