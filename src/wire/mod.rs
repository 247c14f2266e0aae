//! What crosses the network, with no RCTP in it: structured fields, digests, keys, signatures.
