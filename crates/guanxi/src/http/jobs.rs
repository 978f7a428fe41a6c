//! Jobs: progress and receipts.

use guanxi_api::jobs::{JobView, Jobs};
use guanxi_model::job::JobId;
use guanxi_model::{Code, Error};

use super::document::{AdminReadRefusals, JobPath, NodeReadRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};

/// Jobs that one answer shows.
const LISTED_JOBS_MAX: usize = 1_000;

/// Reads a job's progress, and its receipt at the end.
#[utoipa::path(
    get, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "get_job",
    params(JobPath),
    responses((status = 200, description = "The job.", body = JobView), NodeReadRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let reader = call.reader(&query).await?;
    let text = call.name("job");
    let unknown = || {
        let shown: String = text.chars().take(40).collect();
        Error::new(Code::NotFound, format!("there is no job '{shown}'"))
    };
    let id = JobId(text.parse().map_err(|_| unknown())?);
    let job = reader.job(call.tenant(), id)?.ok_or_else(unknown)?;
    let log_keeps_ms = call.app.engine.status().log_keeps_ms;
    Reply::ok(&JobView::new(&job, call.tenant(), reader.catalog(), log_keeps_ms))
}

/// Lists all jobs.
#[utoipa::path(
    get, path = "/v1/admin/jobs", tag = "admin", operation_id = "list_jobs",
    responses((status = 200, description = "The jobs.", body = Jobs), AdminReadRefusals),
)]
pub async fn list(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let tenant = call.tenant();
    call.meet(&query).await?;
    let read = call.app.read_apart(move |reader| {
        let jobs = reader.jobs(tenant, LISTED_JOBS_MAX)?;
        Ok((jobs, reader.catalog().clone()))
    });
    let (jobs, catalog) = read.await?;
    let log_keeps_ms = call.app.engine.status().log_keeps_ms;
    let jobs = jobs.iter();
    let jobs = jobs.map(|job| JobView::new(job, tenant, &catalog, log_keeps_ms));
    Reply::ok(&Jobs { jobs: jobs.collect() })
}
