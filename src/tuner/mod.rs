//! Chooses algorithms and segment sizes.
