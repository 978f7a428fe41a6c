//! Jobs: progress and receipts.

use guanxi_api::jobs::{JobView, Jobs};
use guanxi_model::job::JobId;
use guanxi_model::limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};

use super::document::{AdminReadRefusals, JobPath, JobsListed, NodeReadRefusals};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::jobs;

/// How much of a wrong job an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Reads a job's progress, and its receipt at the end.
#[utoipa::path(
    get, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "get_job",
    params(JobPath),
    responses((status = 200, description = "The job.", body = JobView), NodeReadRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let text = call.name("job");
    let id = text.parse().map_err(|_| {
        let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        jobs::unknown(shown)
    });
    let (job, catalog) = jobs::get(&call.caller(&query)?, JobId(id?)).await?;
    let remains = call.app.deployment.remains();
    Reply::ok(&JobView::new(&job, call.tenant(), &catalog, remains))
}

/// Lists jobs, the newest first.
#[utoipa::path(
    get, path = "/v1/admin/jobs", tag = "admin", operation_id = "list_jobs",
    params(JobsListed),
    responses((status = 200, description = "The jobs.", body = Jobs), AdminReadRefusals),
)]
pub async fn list(call: Call) -> Answered {
    let query = call.query(&["limit", "cursor"])?;
    call.no_body()?;
    let limit = query.number("limit", 1..=PAGE_ITEMS_MAX as u64)?;
    let limit = limit.map_or(PAGE_ITEMS_DEFAULT, |limit| limit as usize);
    let cursor = query.text("cursor").map(str::to_owned);
    let (page, catalog) = jobs::list(&call.caller(&query)?, limit, cursor).await?;
    let remains = call.app.deployment.remains();
    let jobs = page.jobs.iter();
    let jobs = jobs.map(|job| JobView::new(job, call.tenant(), &catalog, remains));
    Reply::ok(&Jobs { jobs: jobs.collect(), next: page.next.as_deref() })
}
