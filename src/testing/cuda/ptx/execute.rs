//! Runs a kernel, one thread after the other.

use super::{AddressMap, Element, Error, Function, Kernel, Kind, Slot, Space};

/// How many blocks, and how many threads each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub blocks: u32,
    pub threads: u32,
}

/// In which order the threads run. A kernel whose result depends on it has a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
}

/// A thread that has executed so many instructions is taken for one that does not end.
const MAX_STEPS: u64 = 1 << 22;

impl Kernel {
    /// Launches the kernel, and returns when it has ended. `parameters` has the bytes of each parameter.
    pub fn launch(
        &self,
        memory: &AddressMap,
        geometry: Geometry,
        order: Order,
        parameters: &[&[u8]],
    ) -> Result<(), Error> {
        let Geometry { blocks, threads } = geometry;
        if blocks == 0 || threads == 0 || threads > self.most_threads {
            let most = self.most_threads;
            return Err(Error(format!("{}: {blocks} blocks of {threads} threads, of at most {most}", self.name)));
        }
        let bytes: Vec<_> = parameters.iter().map(|parameter| parameter.len()).collect();
        if bytes != self.parameters {
            return Err(Error(format!("{}: parameters of {bytes:?} bytes, not {:?}", self.name, self.parameters)));
        }
        let parameters = parameters.concat();
        let mut registers = Vec::new();
        let all = u64::from(blocks) * u64::from(threads);
        for index in 0..all {
            let index = if order == Order::Forward { index } else { all - 1 - index };
            let (block, thread) = (index / u64::from(threads), index % u64::from(threads));
            registers.clone_from(&self.registers);
            registers[..super::SPECIAL.len()].copy_from_slice(&[block, blocks.into(), thread, threads.into()]);
            self.run(&mut registers, &parameters, memory).map_err(|(at, what)| {
                let (line, text) = &self.lines[at];
                Error(format!("{}, block {block}, thread {thread}, line {line}: {text} {what}", self.name))
            })?;
        }
        Ok(())
    }

    /// Runs one thread. An error comes with the number of the instruction.
    fn run(&self, registers: &mut [u64], parameters: &[u8], memory: &AddressMap) -> Result<(), (usize, String)> {
        let mut next = 0;
        for _ in 0..MAX_STEPS {
            let at = next;
            let instruction = &self.instructions[at];
            next += 1;
            if let Some((predicate, wanted)) = instruction.guard
                && (registers[predicate as usize] != 0) != wanted
            {
                continue;
            }
            match instruction.kind {
                Kind::Compute { function, into, operands: [a, b, c, d] } => {
                    let value = |slot: Slot| registers[slot as usize];
                    registers[into as usize] = match function {
                        Function::One(function) => function(value(a)),
                        Function::Two(function) => function(value(a), value(b)),
                        Function::Three(function) => function(value(a), value(b), value(c)),
                        Function::Four(function) => function(value(a), value(b), value(c), value(d)),
                    };
                }
                Kind::Load { space, element, into, number, address, offset } => {
                    let address = registers[address as usize].wrapping_add(offset);
                    let bytes = element.bytes * number;
                    let from = match space {
                        Space::Global => memory.find(address, bytes),
                        Space::Parameters => in_parameters(parameters, address, bytes),
                    };
                    let from = from.map_err(|what| (at, format!("reads {what}")))?;
                    for (i, slot) in (0..number).zip(into) {
                        // SAFETY: there are `number` elements at `from`, which is within the parameters, or in memory
                        // that may be accessed: `AddressMap::insert` was promised that.
                        registers[slot as usize] = unsafe { element.load(from.add((i * element.bytes) as usize)) };
                    }
                }
                Kind::Store { element, from, number, address, offset } => {
                    let address = registers[address as usize].wrapping_add(offset);
                    let into = memory.find(address, element.bytes * number);
                    let into = into.map_err(|what| (at, format!("writes {what}")))?;
                    for (i, slot) in (0..number).zip(from) {
                        // SAFETY: as for loads.
                        unsafe { element.store(into.add((i * element.bytes) as usize), registers[slot as usize]) };
                    }
                }
                Kind::Branch(target) => next = target,
                Kind::Return => return Ok(()),
            }
        }
        Err((next, format!("is reached after {MAX_STEPS} instructions")))
    }
}

/// Where the bytes at an address of the parameters are.
fn in_parameters(parameters: &[u8], address: u64, bytes: u32) -> Result<*mut u8, String> {
    let all = parameters.len() as u64;
    if !address.is_multiple_of(u64::from(bytes)) || address > all || all - address < u64::from(bytes) {
        return Err(format!("{bytes} bytes at {address:#x} of {all} bytes of parameters"));
    }
    // Only loads use this.
    Ok(parameters[address as usize..].as_ptr().cast_mut())
}

impl Element {
    /// # Safety
    /// The element at `from` is valid for reads.
    unsafe fn load(self, from: *const u8) -> u64 {
        // SAFETY: the caller guarantees the bytes.
        let value = unsafe {
            match self.bytes {
                1 => u64::from(from.read()),
                2 => u64::from(from.cast::<u16>().read_unaligned()),
                4 => u64::from(from.cast::<u32>().read_unaligned()),
                _ => from.cast::<u64>().read_unaligned(),
            }
        };
        let Some(bits) = self.signed_to else { return value };
        let unused = 64 - 8 * self.bytes;
        let extended = ((value << unused) as i64 >> unused) as u64;
        extended & (u64::MAX >> (64 - bits))
    }

    /// # Safety
    /// The element at `into` is valid for writes.
    unsafe fn store(self, into: *mut u8, value: u64) {
        // SAFETY: the caller guarantees the bytes.
        unsafe {
            match self.bytes {
                1 => into.write(value as u8),
                2 => into.cast::<u16>().write_unaligned(value as u16),
                4 => into.cast::<u32>().write_unaligned(value as u32),
                _ => into.cast::<u64>().write_unaligned(value),
            }
        }
    }
}
