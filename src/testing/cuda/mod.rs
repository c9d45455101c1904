//! What a GPU would do, without one.

pub(crate) mod ptx;
