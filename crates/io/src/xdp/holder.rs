//! Who keeps an XDP program on an interface: the process that has its link, or the program, open.

use std::fs;
use std::path::Path;

use crate::error::Holder;

/// The process that holds the program with this id, as far as this user may look.
pub(super) fn of(program: u32) -> Holder {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok().map(|pid| (pid, e.path())));
    let own = std::process::id();
    let holding = |(pid, path): (u32, std::path::PathBuf)| {
        (pid != own && holds(&path, program)).then(|| {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            Holder::Process { pid, name: name.trim().into() }
        })
    };
    numbered.filter_map(holding).next().unwrap_or(Holder::Unknown)
}

fn holds(process: &Path, program: u32) -> bool {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|fd| {
        // "anon_inode:bpf_link", "anon_inode:bpf-prog", in brackets on some kernels.
        let bpf = fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("bpf"));
        bpf && fs::read_to_string(process.join("fdinfo").join(fd.file_name())).is_ok_and(|info| names(&info, program))
    })
}

/// Whether a descriptor's `fdinfo` is that of the program or of its link.
fn names(info: &str, program: u32) -> bool {
    info.lines().filter_map(|line| line.strip_prefix("prog_id:")).any(|id| id.trim().parse() == Ok(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_names_its_program() {
        let info =
            "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t7\nprog_tag:\t0011\nprog_id:\t114\nifindex:\t3\n";
        assert!(names(info, 114));
        assert!(!names(info, 11));
        assert!(!names("pos:\t0\n", 114));
        assert_eq!(of(u32::MAX), Holder::Unknown);
    }
}
