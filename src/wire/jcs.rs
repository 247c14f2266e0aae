//! Canonical JSON (RFC 8785, JCS).

use serde::Serialize;
use serde_json::Value;

/// Serialises `value` in canonical form: the bytes to hash or to sign.
///
/// Canonical JSON knows only IEEE 754 doubles. An integer that a double cannot hold would come out as
/// its neighbour, and two different values would share one form; such integers are refused. A number that
/// is not finite has no JSON form; inside a value it is written as `null`, as `serde_json` writes it.
///
/// # Errors
///
/// See [`JcsError`].
pub fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, JcsError> {
    let bytes = serde_json_canonicalizer::to_vec(&value).map_err(|_| JcsError::NotJson)?;
    // An unsafe integer has at least 16 digits: nothing else needs the second look.
    if has_digits(&bytes, 16) {
        let value = serde_json::to_value(value).map_err(|_| JcsError::NotJson)?;
        if !integers_are_exact(&value) {
            return Err(JcsError::InexactInteger);
        }
    }
    Ok(bytes)
}

/// Why a value has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JcsError {
    /// The value has no JSON form: a number that is not finite, or a map whose keys are no strings.
    #[error("the value has no JSON form; numbers must be finite and keys must be strings")]
    NotJson,
    /// An integer lies outside ±(2^53 − 1) (RFC 8785 §3.2.2.3, RFC 7493 §2.2).
    #[error("integers must lie within ±9007199254740991; use a string for longer ones")]
    InexactInteger,
}

fn has_digits(bytes: &[u8], length: usize) -> bool {
    let mut run = 0;
    bytes.iter().any(|byte| {
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        run == length
    })
}

fn integers_are_exact(value: &Value) -> bool {
    const LIMIT: u64 = (1 << 53) - 1;
    match value {
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) => n <= LIMIT,
            (_, Some(n)) => n.unsigned_abs() <= LIMIT,
            _ => true,
        },
        Value::Array(items) => items.iter().all(integers_are_exact),
        Value::Object(members) => members.values().all(integers_are_exact),
        _ => true,
    }
}
