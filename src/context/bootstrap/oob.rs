//! Exchanges contents by the caller's allgather, in records of equal length; rank 0 broadcasts the tuning over the
//! context itself.

use std::cell::{Cell, RefCell};

use super::{AllgatherFunction, record};
use crate::context::Context;
use crate::context::exchange::{Exchange, Limit};
use crate::error::{Error, ErrorKind, Result};
use crate::net::address::Address;

/// An exchange by a function of the caller. A rank that has failed calls it too, with its error, because the other
/// ranks wait in their calls of it.
pub(super) struct ByAllgather<'a> {
    context: &'a Context,
    function: RefCell<&'a mut AllgatherFunction<'a>>,
    /// A call has failed; the function is not called again.
    failed: Cell<bool>,
    limit: Limit,
}

impl<'a> ByAllgather<'a> {
    pub fn new(context: &'a Context, function: &'a mut AllgatherFunction<'a>, limit: Limit) -> Self {
        Self { context, function: RefCell::new(function), failed: Cell::new(false), limit }
    }

    /// Calls the function once.
    fn exchange(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        record::exchange(self.context.versions.own(), self.context.size, own, |record, all| {
            let result = (self.function.borrow_mut())(record, all);
            self.failed.set(result.is_err());
            result
        })
    }

    /// Whether this rank can continue after a call, which may have taken any time.
    fn check(&self) -> Result<()> {
        self.context.check_open()?;
        if self.limit.left(self.context.engine().now()).is_zero() {
            let text = format!("the caller's allgather has returned after more than {:?}", self.limit.timeout);
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        Ok(())
    }
}

impl Exchange for ByAllgather<'_> {
    fn provisional_addresses(&self, own: Result<Vec<u8>>) -> Result<Vec<Address>> {
        let (own, list) = self.exchange(own)?;
        self.context.parse(&list, &own)
    }

    fn addresses(&self, own: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<u8>)> {
        if self.failed.get() {
            return own.map(|own| (own, Vec::new()));
        }
        let contents = self.exchange(own.and_then(|own| self.check().map(|()| own)))?;
        self.check().map(|()| contents)
    }

    fn waits_for_all(&self) -> bool {
        true
    }

    fn memory(&self, own: Result<Vec<u8>>) -> Result<Vec<u8>> {
        self.addresses(own).map(|(_, list)| list)
    }

    fn broadcast(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>> {
        self.context.broadcast_setup(own, self.limit)
    }
}
