//! Collectives of the library itself, with which contexts are made. They have a kind of their own, which no caller's
//! collective has.

use std::sync::Arc;

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::context::bootstrap::record;
use crate::context::exchange::Limit;
use crate::context::run::Run;
use crate::engine::plan;
use crate::engine::{Binding, Prepared};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::try_zeros;
use crate::wire::fingerprint::Purpose;

/// The tag of the exchanges of a split, and of the broadcasts to the ranks of a context that connects.
pub(super) const TAG: u64 = u64::MAX;

/// Most bytes that rank 0 can broadcast.
const MAX_BYTES: usize = 64 << 20;

impl Context {
    /// Gathers the contents, or errors, of all ranks. Returns this rank's content, and those of all ranks in their
    /// order. Collective.
    pub(super) fn gather_setup(&self, own: Result<Vec<u8>>, tag: u64, limit: Limit) -> Result<(Vec<u8>, Vec<u8>)> {
        record::exchange(self.versions.own(), self.size, own, |record, all| {
            let shape = Shape::new(Collective::Allgather, self.rank, self.size, record.len());
            self.run_setup(shape, ("bruck", tag), &[record.as_ptr()], all, limit)
        })
    }

    /// Broadcasts `own` of rank 0, which is the only one that passes it. Collective.
    pub(super) fn broadcast_setup(&self, own: Option<Vec<u8>>, limit: Limit) -> Result<Vec<u8>> {
        if self.size == 1 {
            return Ok(own.unwrap_or_default());
        }
        let length = own.as_ref().map(|own| (own.len() as u64).to_le_bytes());
        let mut bytes = [0; 8];
        self.spread(length.as_ref().map(|length| &length[..]), &mut bytes, limit)?;
        let bytes = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        if bytes > MAX_BYTES {
            return Err(Error::new(
                ErrorKind::Mismatch,
                format!("rank 0 broadcasts {bytes} bytes; at most {MAX_BYTES} are possible"),
            ));
        }
        let mut content = try_zeros(bytes, "the data that rank 0 broadcasts")?;
        self.spread(own.as_deref(), &mut content, limit)?;
        Ok(content)
    }

    fn spread(&self, own: Option<&[u8]>, content: &mut [u8], limit: Limit) -> Result<()> {
        let shape = Shape {
            inputs: usize::from(own.is_some()),
            ..Shape::new(Collective::Broadcast, self.rank, self.size, content.len())
        };
        let input = own.map(<[u8]>::as_ptr);
        self.run_setup(shape, ("binomial", TAG), input.as_slice(), content, limit)
    }

    fn run_setup(
        &self,
        shape: Shape<'_>,
        (algorithm, tag): (&str, u64),
        inputs: &[*const u8],
        output: &mut [u8],
        limit: Limit,
    ) -> Result<()> {
        plan::check_size(&shape)?;
        let algorithm = shape.collective.algorithm(algorithm)?;
        let outputs = [output.as_mut_ptr()];
        // It may be that of another context.
        let own_timeout = (!limit.by_default).then_some(limit.timeout);
        let plan = self.plan(&shape, algorithm, false)?;
        let digest = Purpose::Setup.alone();
        let exchange = Arc::new(Prepared::internal(plan, (&shape, algorithm), 1, digest, false)?);
        let binding = Binding { call: &exchange, inputs, outputs: &outputs, function: None, tag, in_order: false };
        let Limit { deadline, timeout, .. } = limit;
        let run = self.run_of(binding, own_timeout, self.engine().now());
        Run { deadline, timeout, is_round: true, ..run }.execute(&exchange)
    }
}
