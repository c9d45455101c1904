//! NVIDIA's GPUs.

pub mod driver;
pub mod gpu;
pub mod gpus;
pub mod kernels;
pub mod pinned;
#[cfg(test)]
mod tests;
