//! Collectives of the library's own over a context, by which contexts are made: of a kind that no caller's collective has.

use crate::collective::{Collective, Shape};
use crate::context::Context;
use crate::context::bootstrap::{Limit, record};
use crate::context::call::{Call, Run};
use crate::engine::plan;
use crate::engine::{Binding, Combine};
use crate::error::{Error, ErrorKind, Result, try_zeros};
use crate::types::DataType;
use crate::wire::fingerprint::Purpose;

/// Calls of this kind run one at a time.
const TAG: u64 = 0;

/// What rank 0 tells has fewer bytes.
const MOST: usize = 64 << 20;

impl Context {
    /// What this rank tells, or why it cannot go on; and what all tell, in their order. Collective.
    pub(super) fn gather_setup(&self, own: Result<Vec<u8>>, limit: Limit) -> Result<(Vec<u8>, Vec<u8>)> {
        record::exchange(self.rank, self.size, own, |record, all| {
            let shape = Shape::new(Collective::Allgather, self.rank, self.size, record.len());
            self.run_setup(shape, "bruck", &[record.as_ptr()], all, limit)
        })
    }

    /// `own` of rank 0, which alone has it. Collective.
    pub(super) fn broadcast_setup(&self, own: Option<Vec<u8>>, limit: Limit) -> Result<Vec<u8>> {
        if self.size == 1 {
            return Ok(own.unwrap_or_default());
        }
        let length = own.as_ref().map(|own| (own.len() as u64).to_le_bytes());
        let mut bytes = [0; 8];
        self.spread(length.as_ref().map(|length| &length[..]), &mut bytes, limit)?;
        let bytes = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        if bytes > MOST {
            return Err(Error::new(ErrorKind::Mismatch, format!("rank 0 tells {bytes} bytes; {MOST} are possible")));
        }
        let mut told = try_zeros(bytes, "what rank 0 tells")?;
        self.spread(own.as_deref(), &mut told, limit)?;
        Ok(told)
    }

    fn spread(&self, own: Option<&[u8]>, told: &mut [u8], limit: Limit) -> Result<()> {
        let shape = Shape {
            inputs: usize::from(own.is_some()),
            ..Shape::new(Collective::Broadcast, self.rank, self.size, told.len())
        };
        let input = own.map(<[u8]>::as_ptr);
        self.run_setup(shape, "binomial", input.as_slice(), told, limit)
    }

    fn run_setup(
        &self,
        shape: Shape<'_>,
        algorithm: &str,
        inputs: &[*const u8],
        output: &mut [u8],
        limit: Limit,
    ) -> Result<()> {
        plan::check_size(&shape)?;
        let algorithm = shape.collective.algorithm(algorithm)?;
        let outputs = [output.as_mut_ptr()];
        let call = Call { inputs, outputs: &outputs, tag: TAG, ..Call::new(shape, DataType::Uint8) };
        let binding = Binding {
            inputs,
            outputs: &outputs,
            element: 1,
            segment: shape.count.max(1),
            combine: Combine::Nothing,
            digest: Purpose::Setup.alone(),
            tag: TAG,
            counted: false,
            count: shape.count,
        };
        let plan = self.plan(&shape, algorithm, &binding)?;
        let Limit { deadline, timeout } = limit;
        self.execute(&Run { call: &call, algorithm, binding, started: self.engine().now(), deadline, timeout }, plan)
    }
}
