//! Writes records as pickles, for PyTorch's `torchfrtrace`.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Failure;

/// The version of the format, as PyTorch counts.
const FORMAT: &str = "2.10";

/// What PyTorch calls those of our collectives that it has.
const NAMES: [&str; 9] = [
    "gloo:all_reduce",
    "gloo:reduce",
    "gloo:reduce_scatter",
    "gloo:broadcast",
    "gloo:all_gather",
    "gloo:gather",
    "gloo:scatter",
    "gloo:all_to_all",
    "gloo:barrier",
];

/// Writes the record in the file `path`, that of `rank`, to the file `prefix` and rank.
pub fn convert(path: &Path, prefix: &Path, rank: usize) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    let record: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut name = prefix.as_os_str().to_owned();
    name.push(rank.to_string());
    let written = std::fs::write(&name, pickle(&of_torch(&record)));
    written.map_err(|error| Failure::usage(format!("cannot write {}: {error}", name.display())))
}

/// The record in the form of PyTorch's: without calls for which that has no name.
fn of_torch(record: &Value) -> Value {
    let entries = record["entries"].as_array().into_iter().flatten();
    let is_known = |entry: &&Value| {
        entry["purpose"] == "call" && entry["profiling_name"].as_str().is_some_and(|name| NAMES.contains(&name))
    };
    let entries: Vec<Value> = entries.filter(is_known).map(entry_of_torch).collect();
    json!({
        "version": FORMAT,
        "entries": entries,
        "pg_config": record["pg_config"],
        "pg_status": record["pg_status"],
    })
}

fn entry_of_torch(entry: &Value) -> Value {
    const SAME: [&str; 17] = [
        "record_id",
        "pg_id",
        "process_group",
        "collective_seq_id",
        "p2p_seq_id",
        "op_id",
        "is_p2p",
        "profiling_name",
        "input_sizes",
        "input_dtypes",
        "output_sizes",
        "output_dtypes",
        "time_discovered_started_ns",
        "time_discovered_completed_ns",
        "duration_ms",
        "state",
        "retired",
    ];
    let mut fields: Map<String, Value> = SAME.iter().map(|name| ((*name).to_owned(), entry[*name].clone())).collect();
    // A call that has failed is one that was given up.
    if entry["state"] == "failed" {
        fields.insert("state".into(), json!("started"));
        fields.insert("time_discovered_completed_ns".into(), Value::Null);
    }
    // A call that did not wait has one time.
    let created = [&entry["time_created_ns"], &entry["time_discovered_completed_ns"]];
    let created = created.into_iter().find_map(Value::as_u64).unwrap_or(0);
    fields.insert("time_created_ns".into(), json!(created));
    fields.insert("frames".into(), json!([]));
    Value::Object(fields)
}

/// `value` as a pickle of protocol 2.
fn pickle(value: &Value) -> Vec<u8> {
    let mut bytes = vec![0x80, 2];
    write(&mut bytes, value);
    bytes.push(b'.');
    bytes
}

fn write(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(b'N'),
        Value::Bool(value) => bytes.push(if *value { 0x88 } else { 0x89 }),
        Value::Number(number) => match number.as_i64() {
            Some(number) => {
                bytes.extend([0x8a, 8]);
                bytes.extend(number.to_le_bytes());
            }
            // Below 2^64, with a ninth byte for the sign; or a fraction.
            None => match number.as_u64() {
                Some(number) => {
                    bytes.extend([0x8a, 9]);
                    bytes.extend(number.to_le_bytes());
                    bytes.push(0);
                }
                None => {
                    bytes.push(b'G');
                    bytes.extend(number.as_f64().unwrap_or(f64::NAN).to_be_bytes());
                }
            },
        },
        Value::String(text) => {
            bytes.push(b'X');
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        Value::Array(values) => {
            bytes.extend(b"](");
            values.iter().for_each(|value| write(bytes, value));
            bytes.push(b'e');
        }
        Value::Object(fields) => {
            bytes.extend(b"}(");
            for (name, value) in fields {
                write(bytes, &Value::String(name.clone()));
                write(bytes, value);
            }
            bytes.push(b'u');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_opcodes() {
        let value = json!({"a": [null, true, false, -2, u64::MAX, 0.5, "é"]});
        let mut expected = b"\x80\x02}(X\x01\0\0\0a](N\x88\x89\x8a\x08".to_vec();
        expected.extend((-2i64).to_le_bytes());
        expected.extend(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0G\x3f\xe0\0\0\0\0\0\0X\x02\0\0\0\xc3\xa9eu.");
        assert_eq!(pickle(&value), expected);
    }
}
