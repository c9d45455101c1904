//! Translates PTX, as NVIDIA's compiler writes it: one directive, label or instruction a line.

use std::collections::HashMap;

use super::functions::{HALVES, JOIN_HALVES, function};
use super::{Element, Error, Function, Instruction, Kernel, Kind, Module, SPECIAL, Slot, Space};

/// What a register holds before it is written.
const UNWRITTEN: u64 = 0xA5A5_A5A5_A5A5_A5A5;

impl Module {
    /// Translates the text of a PTX file.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let lines = text.lines().zip(1..).map(|(line, number)| {
            let code = line.split("//").next().unwrap_or_default().trim();
            (number, code)
        });
        let mut lines = lines.filter(|(_, code)| !code.is_empty());
        let mut module = Self { version: (0, 0), target: String::new(), kernels: HashMap::new() };
        while let Some((number, code)) = lines.next() {
            let unknown = || Error(format!("line {number}: {code}: unknown"));
            let (directive, rest) = code.split_once(' ').unwrap_or((code, ""));
            match directive {
                ".version" => {
                    let (major, minor) = rest.split_once('.').ok_or_else(unknown)?;
                    let number = |digits: &str| digits.parse().map_err(|_| unknown());
                    module.version = (number(major)?, number(minor)?);
                }
                ".target" => module.target = rest.to_owned(),
                ".address_size" if rest == "64" => {}
                ".visible" => {
                    let name = rest.strip_prefix(".entry ").and_then(|rest| rest.strip_suffix('('));
                    let name = name.ok_or_else(unknown)?.to_owned();
                    let mut parser = Parser::new(name.clone());
                    loop {
                        let Some((number, code)) = lines.next() else {
                            return Err(Error(format!("{name}: does not end")));
                        };
                        let at_line = |what| Error(format!("line {number}: {code}: {what}"));
                        match code {
                            ")" | "{" => {}
                            "}" => break,
                            _ => parser.line(number, code).map_err(at_line)?,
                        }
                    }
                    module.kernels.insert(name, parser.finish()?);
                }
                _ => return Err(unknown()),
            }
        }
        Ok(module)
    }
}

/// What is known of a kernel so far.
struct Parser {
    kernel: Kernel,
    /// The first register of each name, such as `%rd`; how many there are, and of how many bits.
    registers: HashMap<String, (Slot, u32, u32)>,
    constants: HashMap<u64, Slot>,
    /// The address of each parameter.
    parameters: HashMap<String, u64>,
    /// The number of the instruction behind each label.
    labels: HashMap<String, usize>,
    /// Instructions that branch, and where to.
    branches: Vec<(usize, String)>,
}

impl Parser {
    fn new(name: String) -> Self {
        let kernel = Kernel {
            name,
            parameters: Vec::new(),
            most_threads: 1024,
            registers: vec![0; SPECIAL.len()],
            instructions: Vec::new(),
            lines: Vec::new(),
        };
        Self {
            kernel,
            registers: HashMap::new(),
            constants: HashMap::new(),
            parameters: HashMap::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
        }
    }

    fn finish(mut self) -> Result<Kernel, Error> {
        let kernel = &mut self.kernel;
        for (at, label) in self.branches {
            let (line, text) = &kernel.lines[at];
            let target = self.labels.get(&label).filter(|target| **target < kernel.instructions.len());
            let target = target.ok_or_else(|| Error(format!("line {line}: {text}: leads nowhere")))?;
            kernel.instructions[at].kind = Kind::Branch(*target);
        }
        let last = kernel.instructions.last();
        let ends = |last: &Instruction| last.guard.is_none() && matches!(last.kind, Kind::Return | Kind::Branch(_));
        if !last.is_some_and(ends) {
            return Err(Error(format!("{}: does not end with ret", kernel.name)));
        }
        Ok(self.kernel)
    }

    /// A line within a kernel, its parameters included.
    fn line(&mut self, number: u32, code: &str) -> Result<(), &'static str> {
        if let Some(label) = code.strip_suffix(':') {
            self.labels.insert(label.to_owned(), self.kernel.instructions.len());
            return Ok(());
        }
        if let Some(parameter) = code.strip_prefix(".param .align 8 .b8 ") {
            return self.parameter(parameter.trim_end_matches(','));
        }
        if let Some(threads) = code.strip_prefix(".maxntid ") {
            let x = threads.strip_suffix(", 1, 1").and_then(|x| x.parse().ok());
            self.kernel.most_threads = x.ok_or("what is the most?")?;
            return Ok(());
        }
        let statement = code.strip_suffix(';').ok_or("a directive or an instruction that is unknown")?;
        if let Some(registers) = statement.strip_prefix(".reg ") {
            return self.declare(registers);
        }
        // Advice to the compiler.
        if statement == ".pragma \"nounroll\"" {
            return Ok(());
        }
        self.kernel.lines.push((number, code.to_owned()));
        self.instruction(statement)?;
        // Where a line became two instructions.
        self.kernel.lines.resize(self.kernel.instructions.len(), (number, code.to_owned()));
        Ok(())
    }

    /// `NAME[BYTES]`, aligned to 8 bytes.
    fn parameter(&mut self, text: &str) -> Result<(), &'static str> {
        let (name, bytes) = text.split_once('[').ok_or("how many bytes?")?;
        let bytes: usize = bytes.strip_suffix(']').and_then(|bytes| bytes.parse().ok()).ok_or("how many bytes?")?;
        if !bytes.is_multiple_of(8) {
            return Err("not a multiple of the alignment");
        }
        self.parameters.insert(name.to_owned(), self.kernel.parameters.iter().sum::<usize>() as u64);
        self.kernel.parameters.push(bytes);
        Ok(())
    }

    /// `.TYPE %NAME<NUMBER>`.
    fn declare(&mut self, text: &str) -> Result<(), &'static str> {
        let (of_type, names) = text.split_once(char::is_whitespace).ok_or("which registers?")?;
        let bits = match of_type {
            ".pred" => 1,
            ".b16" => 16,
            ".b32" | ".f32" => 32,
            ".b64" | ".f64" => 64,
            _ => return Err("registers of an unknown type"),
        };
        let (name, number) =
            names.trim().strip_suffix('>').and_then(|names| names.split_once('<')).ok_or("how many?")?;
        let number: u32 = number.parse().map_err(|_| "how many?")?;
        let registers = &mut self.kernel.registers;
        self.registers.insert(name.to_owned(), (registers.len() as Slot, number, bits));
        registers.resize(registers.len() + number as usize, UNWRITTEN & (u64::MAX >> (64 - bits)));
        Ok(())
    }

    /// A register, and its bits.
    fn register(&self, text: &str) -> Option<(Slot, u32)> {
        let digits = text.find(|c: char| c.is_ascii_digit())?;
        let &(first, number, bits) = self.registers.get(&text[..digits])?;
        let index: u32 = text[digits..].parse().ok()?;
        (index < number).then_some((first + index, bits))
    }

    fn constant(&mut self, value: u64) -> Slot {
        let registers = &mut self.kernel.registers;
        *self.constants.entry(value).or_insert_with(|| {
            registers.push(value);
            (registers.len() - 1) as Slot
        })
    }

    /// What is written to.
    fn target(&self, text: &str) -> Result<Slot, &'static str> {
        self.register(text).map(|(slot, _)| slot).ok_or("writes to what is no register")
    }

    /// What is read.
    fn operand(&mut self, text: &str) -> Result<Slot, &'static str> {
        if let Some(special) = SPECIAL.iter().position(|name| *name == text) {
            return Ok(special as Slot);
        }
        if let Some((slot, _)) = self.register(text) {
            return Ok(slot);
        }
        if let Some(&address) = self.parameters.get(text) {
            return Ok(self.constant(address));
        }
        // The lowest bits of a negative number are right for every type.
        let value = text.parse::<i64>().map(|value| value as u64).or_else(|_| text.parse());
        value.map(|value| self.constant(value)).map_err(|_| "an unknown operand")
    }

    /// `[OPERAND]` or `[OPERAND+OFFSET]`.
    fn address(&mut self, text: &str) -> Result<(Slot, u64), &'static str> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).ok_or("no address")?;
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let offset: i64 = offset.parse().map_err(|_| "an unknown offset")?;
        Ok((self.operand(base)?, offset as u64))
    }

    fn push(&mut self, guard: Option<(Slot, bool)>, kind: Kind) {
        self.kernel.instructions.push(Instruction { guard, kind });
    }

    fn instruction(&mut self, statement: &str) -> Result<(), &'static str> {
        let (mut name, mut rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        let mut guard = None;
        if let Some(predicate) = name.strip_prefix('@') {
            let wanted = !predicate.starts_with('!');
            guard = Some((self.operand(predicate.trim_start_matches('!'))?, wanted));
            (name, rest) = rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest, ""));
        }
        let operands = operands(rest);
        match (name, &operands[..]) {
            ("bra" | "bra.uni", [label]) => {
                self.branches.push((self.kernel.instructions.len(), (*label).to_owned()));
                self.push(guard, Kind::Branch(usize::MAX));
            }
            ("ret", []) => self.push(guard, Kind::Return),
            ("mov.b32", [halves, whole]) if halves.starts_with('{') => {
                let whole = self.operand(whole)?;
                for (half, function) in list(halves).zip(HALVES) {
                    let into = self.target(half)?;
                    self.push(guard, Kind::Compute { function, into, operands: [whole; 4] });
                }
            }
            ("mov.b32", [whole, halves]) if halves.starts_with('{') => {
                let halves: Vec<&str> = list(halves).collect();
                self.compute(guard, JOIN_HALVES, whole, &halves)?;
            }
            _ if name.starts_with("ld.") || name.starts_with("st.") => self.access(guard, name, &operands)?,
            (_, [into, from @ ..]) => {
                let function = function(name).ok_or("an unknown instruction")?;
                self.compute(guard, function, into, from)?;
            }
            _ => return Err("an unknown instruction"),
        }
        Ok(())
    }

    fn compute(
        &mut self,
        guard: Option<(Slot, bool)>,
        function: Function,
        into: &str,
        from: &[&str],
    ) -> Result<(), &'static str> {
        if from.len() != function.operands() {
            return Err("another number of operands");
        }
        let into = self.target(into)?;
        let mut operands = [into; 4];
        for (operand, text) in operands.iter_mut().zip(from) {
            *operand = self.operand(text)?;
        }
        self.push(guard, Kind::Compute { function, into, operands });
        Ok(())
    }

    /// `ld.SPACE.TYPE INTO, ADDRESS`, `st.global.TYPE ADDRESS, FROM`, each also with `.vNUMBER.TYPE` and a list.
    fn access(&mut self, guard: Option<(Slot, bool)>, name: &str, operands: &[&str]) -> Result<(), &'static str> {
        const UNKNOWN: &str = "an unknown access to memory";
        let parts: Vec<&str> = name.split('.').collect();
        let (number, of_type) = match parts[2..] {
            [of_type] => (1, of_type),
            ["v2", of_type] => (2, of_type),
            ["v4", of_type] => (4, of_type),
            _ => return Err(UNKNOWN),
        };
        let bytes = match of_type {
            "u8" | "s8" => 1,
            "u16" => 2,
            "u32" | "f32" => 4,
            "u64" | "f64" => 8,
            _ => return Err(UNKNOWN),
        };
        let [first, second] = operands else { return Err(UNKNOWN) };
        let (values, address) = if parts[0] == "ld" { (first, second) } else { (second, first) };
        let values: Vec<&str> = list(values).collect();
        if values.len() != number {
            return Err("another number of registers");
        }
        let mut slots = [0; 4];
        let mut register_bits = 64;
        for (slot, value) in slots.iter_mut().zip(values) {
            (*slot, register_bits) = self.register(value).ok_or("what is no register")?;
        }
        let (address, offset) = self.address(address)?;
        let signed_to = of_type.starts_with('s').then_some(register_bits);
        let (element, number) = (Element { bytes, signed_to }, number as u32);
        let kind = match parts[..2] {
            ["ld", "global"] => Kind::Load { space: Space::Global, element, into: slots, number, address, offset },
            ["ld", "param"] => Kind::Load { space: Space::Parameters, element, into: slots, number, address, offset },
            ["st", "global"] => Kind::Store { element, from: slots, number, address, offset },
            _ => return Err(UNKNOWN),
        };
        self.push(guard, kind);
        Ok(())
    }
}

/// The operands of an instruction: what commas separate, but for those within braces.
fn operands(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        found.push(last);
    }
    found
}

/// The members of `{A, B}`, or the only one of `A`.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.trim_matches(['{', '}']).split(',').map(str::trim)
}
