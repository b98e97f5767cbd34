mod picture;
mod properties;
mod scenarios;
mod tables;
mod world;
