//! Transports: how bytes reach another rank.

pub mod tcp;
