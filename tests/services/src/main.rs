//! `guanxi-services PROGRAM ARGUMENTS…` starts MariaDB and Kafka, runs the program, which finds
//! them by its environment, and stops them. Its exit is the program's.

use std::process::ExitCode;
use std::thread;

use guanxi_services::{Kafka, MariaDb, lent};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: guanxi-services PROGRAM ARGUMENTS…");
        return ExitCode::FAILURE;
    };
    let what = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    // Most of a start is waiting.
    let (mariadb, kafka) = thread::scope(|scope| {
        let kafka = scope.spawn(|| Kafka::start_or_skip(&what));
        (MariaDb::start_or_skip(&what), kafka.join().expect("Kafka can be started"))
    });
    let (Some(mariadb), Some(kafka)) = (mariadb, kafka) else {
        // Said above; where servers are required, it was a failure.
        let required = std::env::var("GUANXI_REQUIRE_SERVICES").is_ok_and(|value| value == "1");
        return ExitCode::from(u8::from(required));
    };
    match lent::run(&mariadb, &kafka, &program, arguments) {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot start {what}: {error}");
            ExitCode::FAILURE
        }
    }
}
