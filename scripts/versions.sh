# What is pinned, in the one place that says so. Sourced by the other scripts.

# Writes include/gloo_rs.h; another version may word it otherwise.
CBINDGEN_VERSION=0.29.2

# Its wheel holds the handwritten digits; the sum is that of the file itself.
SCIKIT_LEARN_VERSION=1.7.2
DIGITS_SHA256=6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8
