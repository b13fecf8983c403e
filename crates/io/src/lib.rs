//! Packet I/O: AF_XDP, AF_PACKET, TAP, memory wire, pcap

pub mod impair;
