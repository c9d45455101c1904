//! The processor's clock.

/// What the processor's clock shows: it counts at a constant rate that is not known, and is read without a system call.
/// Where there is none, nanoseconds of the system's monotonic clock.
#[inline(always)] // On the path of small collectives.
pub fn time_stamp() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    let now = {
        let now: u64;
        // SAFETY: reads a register that programs may read, and nothing else.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) now, options(nomem, nostack, preserves_flags)) };
        now
    };
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let now = super::monotonic_nanoseconds();
    now
}
