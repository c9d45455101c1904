//! Options of devices and contexts, by keyword arguments.

use crate::abi::*;
use crate::arguments::{Keywords, Texts, milliseconds};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Sets a text of an options struct from the keyword of its name.
macro_rules! take_texts {
    ($keywords:ident, $texts:ident, $options:ident: $($field:ident)*) => {
        $(
            let value = $keywords.take(stringify!($field))?;
            $options.$field = $texts.add(value.as_ref().map(|value| value.extract()).transpose()?)?;
        )*
    };
}

/// `call` with the options of a device.
pub fn with_device_options<T>(
    given: Option<&Bound<'_, PyDict>>,
    call: impl FnOnce(&gloo_rs_device_options_t) -> PyResult<T>,
) -> PyResult<T> {
    // SAFETY: integers and pointers, which may all be zero; the functions write no more than the sizes.
    let (mut options, mut tls) = unsafe {
        let mut options: gloo_rs_device_options_t = std::mem::zeroed();
        gloo_rs_device_options_init(&mut options, size_of::<gloo_rs_device_options_t>());
        let mut tls: gloo_rs_tls_options_t = std::mem::zeroed();
        gloo_rs_tls_options_init(&mut tls, size_of::<gloo_rs_tls_options_t>());
        (options, tls)
    };
    let (mut keywords, mut texts) = (Keywords::new(given), Texts::default());
    take_texts!(keywords, texts, options: interface_name hostname transport port_range wait ptracer);
    if let Some(port) = keywords.take("port")? {
        options.port = port.extract()?;
    }
    if let Some(streams) = keywords.take("streams")? {
        options.streams = streams.extract()?;
    }
    if let Some(on) = keywords.take("shared_memory")? {
        options.shared_memory = if on.extract()? { GLOO_RS_SHARED_MEMORY_ON } else { GLOO_RS_SHARED_MEMORY_OFF };
    }
    if let Some(files) = keywords.take("tls")? {
        let files = files.cast_into::<PyDict>()?;
        let mut files_given = Keywords::new(Some(&files));
        take_texts!(files_given, texts, tls: cert key ca_file ca_path names);
        files_given.finish("tls")?;
        options.tls = &tls;
    }
    keywords.finish("Device")?;
    call(&options)
}

/// `call` with the options of a context.
pub fn with_context_options<T>(
    given: Option<&Bound<'_, PyDict>>,
    call: impl FnOnce(&gloo_rs_context_options_t) -> PyResult<T>,
) -> PyResult<T> {
    // SAFETY: integers and pointers, which may all be zero; the function writes no more than the size.
    let mut options = unsafe {
        let mut options: gloo_rs_context_options_t = std::mem::zeroed();
        gloo_rs_context_options_init(&mut options, size_of::<gloo_rs_context_options_t>());
        options
    };
    let (mut keywords, mut texts) = (Keywords::new(given), Texts::default());
    take_texts!(keywords, texts, options: token tuning wait order);
    if let Some(timeout) = keywords.take("timeout")? {
        options.timeout_ms = milliseconds(Some(timeout.extract()?))?;
    }
    if let Some(connect) = keywords.take("connect")? {
        options.connect = match connect.extract()? {
            "lazy" => GLOO_RS_CONNECT_LAZY,
            "full" => GLOO_RS_CONNECT_FULL,
            other => return Err(PyValueError::new_err(format!("connect is {other:?}; it can be lazy or full"))),
        };
    }
    if let Some(on) = keywords.take("check_calls")? {
        options.check_calls = if on.extract()? { GLOO_RS_CHECK_CALLS_ON } else { GLOO_RS_CHECK_CALLS_OFF };
    }
    if let Some(bytes) = keywords.take("max_segment_bytes")? {
        options.max_segment_bytes = bytes.extract()?;
    }
    if let Some(on) = keywords.take("commit_memory")? {
        options.commit_memory = on.extract::<bool>()?.into();
    }
    keywords.finish("Context")?;
    call(&options)
}
