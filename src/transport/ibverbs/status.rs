//! Completion statuses in words.

use ibverbs_sys::ibv_wc_status::{self, Type};

/// What a work request that ended with `status` says about the connection. `None` for one that was flushed, because an
/// earlier one failed.
pub fn describe(status: Type) -> Option<&'static str> {
    Some(match status {
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => return None,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => "a message was longer than the buffer for it, or than the port allows",
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => "the queue pair is in an inconsistent state",
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => "a local buffer is not registered for what the device does with it",
        ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => "the peer wrote where this rank's memory does not allow it",
        ibv_wc_status::IBV_WC_BAD_RESP_ERR => "the peer's device answered with an unexpected packet",
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => "the peer's device refused a request as invalid",
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => {
            "the peer's memory may not be accessed: it is not registered any more, or never was"
        }
        ibv_wc_status::IBV_WC_REM_OP_ERR => "the peer's device could not complete a request",
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => {
            "no acknowledgement from the peer's device after all retries: it, its port, or the path to it is down"
        }
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer has no buffers for messages posted",
        ibv_wc_status::IBV_WC_REM_ABORT_ERR => "the peer's device aborted a request",
        ibv_wc_status::IBV_WC_FATAL_ERR => "the device has failed",
        ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => "the peer's device did not respond in time",
        _ => "the device reported an error",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_but_that_of_flushed_requests_has_words() {
        for status in 1..=21 {
            assert_eq!(describe(status).is_none(), status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        }
    }
}
