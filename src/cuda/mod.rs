//! NVIDIA's GPUs.

pub mod kernels;
mod tests;
