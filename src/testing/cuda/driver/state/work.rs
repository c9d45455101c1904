//! What streams do, and when.

use std::collections::BTreeMap;

use super::{Answer, ERROR_ILLEGAL_ADDRESS, ERROR_LAUNCH_TIMEOUT, KERNELS, PRIMARY, State};
use crate::testing::cuda::driver::memory::Access;
use crate::testing::cuda::driver::streams::{Operation, Source};
use crate::testing::cuda::ptx::Order;

impl State {
    pub(super) fn enqueue(&mut self, stream: usize, operation: Operation) {
        self.streams.streams.get_mut(&stream).expect("it was checked").queue.push_back(operation);
        self.protect();
    }

    /// Lets the host do with memory what the work of streams leaves to it.
    fn protect(&mut self) {
        let mut accesses: BTreeMap<u64, Access> = BTreeMap::new();
        for (address, writes) in self.streams.pending() {
            if let Some((start, _)) = self.memory.find(address) {
                let access = if writes { Access::None } else { Access::Read };
                let entry = accesses.entry(start).or_insert(access);
                *entry = access.min(*entry);
            }
        }
        let all: Vec<u64> = self.memory.allocations.keys().copied().collect();
        for address in all {
            self.memory.allow(address, accesses.get(&address).copied().unwrap_or(Access::Write));
        }
    }

    /// Lets streams work, in any order, until `is_done`.
    pub(super) fn run_until(&mut self, is_done: impl Fn(&Self) -> bool) -> Answer<()> {
        while !is_done(self) {
            if !self.step() {
                return self.wrong(ERROR_LAUNCH_TIMEOUT, "streams wait for each other".into());
            }
            if let Some(status) = self.fault {
                return Err(status);
            }
        }
        Ok(())
    }

    /// One stream, any of those that can, does what is next. Returns whether one can.
    pub(super) fn step(&mut self) -> bool {
        let ready = self.streams.ready();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[self.random.below(ready.len())];
        let own = self.streams.streams.get_mut(&stream).expect("it is ready");
        let (gpu, operation) = (own.context - PRIMARY, own.queue.pop_front().expect("it is ready"));
        // What is done here is done by the GPU.
        let all: Vec<u64> = self.memory.allocations.keys().copied().collect();
        all.into_iter().for_each(|address| self.memory.allow(address, Access::Write));
        if let Err(what) = self.execute(gpu, operation) {
            self.misuse.push(what);
            self.fault = Some(ERROR_ILLEGAL_ADDRESS);
            self.streams.streams.values_mut().for_each(|stream| stream.queue.clear());
        }
        self.protect();
        true
    }

    fn execute(&mut self, gpu: usize, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Copy { into, from, bytes } => {
                let content = match from {
                    Source::Staged(content) => content,
                    Source::Address(address) => {
                        let from = self.memory.bytes(address, bytes);
                        let from = from.ok_or_else(|| format!("a copy reads memory at {address:#x}, which is gone"))?;
                        // SAFETY: the memory has these bytes.
                        unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
                    }
                };
                // Memory that is not known is pageable, and the function waits for the copy.
                let host = || std::ptr::with_exposed_provenance_mut(into as usize);
                let into = self.memory.bytes(into, bytes).unwrap_or_else(host);
                // SAFETY: the memory has these bytes, or the caller has promised that.
                unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), into, bytes) };
            }
            Operation::Launch { kernel, geometry, parameters } => {
                let order = if self.random.below(2) == 0 { Order::Forward } else { Order::Backward };
                let kernel = KERNELS.kernel(&kernel).expect("it was checked");
                let mut rest = &parameters[..];
                let each = kernel.parameters.iter().map(|bytes| {
                    let (one, others) = rest.split_at(*bytes);
                    rest = others;
                    one
                });
                let each: Vec<&[u8]> = each.collect();
                kernel.launch(&self.memory.map(gpu), geometry, order, &each).map_err(|error| error.to_string())?;
            }
            Operation::Record { event, number } => {
                if let Some(event) = self.streams.events.get_mut(&event) {
                    event.reached = event.reached.max(number);
                }
            }
            Operation::Wait { .. } => {}
        }
        Ok(())
    }
}
